// The site is docs/*.md as they are. make site copies them and this file into bin/site, where VitePress is installed.
import { readFileSync } from "node:fs";
import { posix, resolve } from "node:path";

const repository = "https://github.com/caddy-redlock/caddy-redlock";
const docs = resolve("docs");

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
  return `${repository}/blob/main/${target}`;
}

export default {
  title: "caddy-redlock",
  description: "A distributed lock on independent Redis masters for HTTP requests and jobs",
  base: "/caddy-redlock/",
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
    sidebar: sidebar(),
    search: { provider: "local" },
    socialLinks: [{ icon: "github", link: repository }],
    editLink: { pattern: `${repository}/edit/main/docs/:path` },
  },
};
