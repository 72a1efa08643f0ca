/* SPDX-License-Identifier: Apache-2.0 */
/* Finds pages that have all words; `pages` is made with the site (pages.js). */
const box = document.querySelector('input'), found = document.querySelector('#found');
box.addEventListener('input', () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(w => w);
    found.replaceChildren();
    if (!words.length)
        return;
    const score = p => words.reduce((s, w) => s + (p.title.toLowerCase().includes(w) ? 9 : 0), 0);
    const hits = pages.filter(p => words.every(w => (p.title + ' ' + p.text).toLowerCase().includes(w)));
    hits.sort((a, b) => score(b) - score(a));
    for (const p of hits.slice(0, 12)) {
        const line = document.createElement('p'), link = document.createElement('a');
        const at = Math.max(0, p.text.toLowerCase().indexOf(words[0]) - 40);
        link.href = document.body.dataset.root + p.url;
        link.textContent = p.title;
        line.append(link, ' … ' + p.text.slice(at, at + 160) + ' …');
        found.append(line);
    }
    if (!hits.length)
        found.append('No page has all these words.');
});
