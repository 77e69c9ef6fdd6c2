// check follows the links within a part of the site, whose folder and path it is given: to pages, and to sections of them.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const [folder, base] = process.argv.slice(2);
const pages = readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(".html"));
const text = (name) => readFileSync(join(folder, name), "utf8");
let links = 0;
for (const page of pages) {
  for (const [, href] of text(page).matchAll(/<a\b[^>]*? href="([^"]*)"/g)) {
    if (/^[a-z]+:/.test(href)) continue;
    const { pathname, hash } = new URL(href, `http://site${base}${page}`);
    const path = decodeURIComponent(pathname).slice(base.length) || "index";
    const target = [path, `${path}.html`, `${path}index.html`].find((name) => name.endsWith(".html") && existsSync(join(folder, name)));
    links++;
    if (!pathname.startsWith(base) || !target) console.error(`${page}: no page ${href}`);
    else if (hash && !text(target).includes(`id="${decodeURIComponent(hash.slice(1))}"`)) console.error(`${page}: no section ${href}`);
    else continue;
    process.exitCode = 1;
  }
}
if (pages.length < 20 || links < 200) {
  console.error(`${pages.length} pages with ${links} links: too few`);
  process.exitCode = 1;
}
console.log(`${pages.length} pages, ${links} links`);
