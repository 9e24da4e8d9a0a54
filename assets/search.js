// What a search result quotes comes from the page's text, not from the buttons and the contents around it.
const quoted = Search.htmlToText;
Search.htmlToText = (html, anchor) => {
  const page = new DOMParser().parseFromString(html, "text/html");
  const article = page.querySelector("article.bd-article");
  if (article) page.querySelector('[role="main"]').replaceChildren(article);
  return quoted(page.documentElement.outerHTML, anchor);
};
