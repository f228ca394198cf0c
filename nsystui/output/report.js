const number = text => { const digits = text.replace(/[^0-9.eE+-]/g, ''); return digits ? parseFloat(digits) : NaN; };
for (const button of document.querySelectorAll('th button')) button.addEventListener('click', () => {
  const head = button.closest('th'), table = head.closest('table'), body = table.tBodies[0];
  const place = head.cellIndex, isNumber = head.classList.contains('n');
  const before = head.getAttribute('aria-sort');
  const down = before ? before === 'ascending' : isNumber;
  for (const other of table.querySelectorAll('th')) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const rows = [...body.rows].map(row => [row.cells[place].textContent, row]);
  rows.sort(([a], [b]) => {
    if (!isNumber) return (down ? -1 : 1) * a.localeCompare(b, 'en', {numeric: true});
    const x = number(a), y = number(b);
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
    return down ? y - x : x - y;
  });
  body.append(...rows.map(([, row]) => row));
});
let closed = [];
addEventListener('beforeprint', () => {
  closed = [...document.querySelectorAll('details:not([open])')];
  for (const one of closed) one.open = true;
});
addEventListener('afterprint', () => { for (const one of closed) one.open = false; });
