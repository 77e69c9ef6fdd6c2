// The site is docs/*.md as they are. build.sh copies them and this file into bin/site, where VitePress is installed: of TAG, or of none; there
// are other parts for VERSIONS.
import { readFileSync } from "node:fs";
import { posix, resolve } from "node:path";

const repository = "https://github.com/caddy-redlock/caddy-redlock";
const pages = "https://caddy-redlock.github.io/caddy-redlock/";
const docs = resolve("docs");
const tag = process.env.TAG;
const version = tag?.replace(/\.\d+$/, "");

// versions is the menu of all pages that says which version they are for, and leads to the others.
function versions() {
  const others = (process.env.VERSIONS ?? "").split(" ").filter(Boolean);
  const name = tag || (others.length ? "main, not released" : "not released yet");
  return [{ text: name, items: ["main", ...others].map((text) => ({ text, link: `${pages}${text === "main" ? "" : `${text}/`}`, target: "_self" })) }];
}

// sidebar is the index, docs/README.md, whose links begin the lines of its lists.
function sidebar() {
  const groups = [];
  for (const line of readFileSync(`${docs}/README.md`, "utf8").split("\n")) {
    const heading = line.match(/^## (.+)/);
    const entry = line.match(/^- \[(.+?)\]\((.+?)\)/);
    if (heading) groups.push({ text: heading[1], items: [] });
    if (entry) groups.at(-1).items.push({ text: entry[1].replace(/\.md$/, ""), link: outside(entry[2], "README.md") ?? `/${entry[2]}` });
  }
  return groups;
}

// outside returns the address of a file of the repository that isn't in docs.
function outside(href, document) {
  if (/^[a-z]+:|^#/.test(href)) return undefined;
  const target = posix.join("docs", posix.dirname(document), href);
  if (target.startsWith("docs/") && /\.md(#|$)/.test(target)) return undefined;
  return `${repository}/blob/${tag || "main"}/${target}`;
}

export default {
  title: "caddy-redlock",
  description: "A distributed lock on independent Redis masters for HTTP requests and jobs",
  base: new URL(pages).pathname + (version ? `${version}/` : ""),
  srcDir: docs,
  rewrites: { "README.md": "index.md" },
  cleanUrls: true,
  markdown: {
    languageAlias: { caddyfile: "nginx" }, // its colors fit
    // The anchors that GitHub makes, which TestSectionsInDocuments follows.
    anchor: { slugify: (heading) => heading.toLowerCase().replace(/[^\w -]/g, "").replaceAll(" ", "-") },
    config(md) {
      md.renderer.rules.code_inline = (tokens, i) => `<code v-pre>${md.utils.escapeHtml(tokens[i].content)}</code>`;
      md.core.ruler.push("outside", ({ tokens, env }) => {
        for (const token of tokens.flatMap((token) => token.children ?? [])) {
          const address = token.type === "link_open" && outside(token.attrGet("href"), env.relativePath === "index.md" ? "README.md" : env.relativePath);
          if (address) token.attrSet("href", address);
        }
      });
    },
  },
  themeConfig: {
    nav: versions(),
    sidebar: sidebar(),
    search: { provider: "local" },
    socialLinks: [{ icon: "github", link: repository }],
    editLink: tag ? undefined : { pattern: `${repository}/edit/main/docs/:path` },
  },
};
