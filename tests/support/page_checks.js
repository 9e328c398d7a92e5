// What a person would see wrong on a page, as sentences; an empty list is a good page.
// Evaluated in the browser, on the page as it is laid out and painted.
() => {
  const faults = [];
  const width = document.documentElement.clientWidth;
  const say = (what, text) => faults.push(`${what}: ${text.trim().slice(0, 60)}`);

  if (document.documentElement.scrollWidth > width + 1)
    say("horizontal scroll", `${document.documentElement.scrollWidth} > ${width}`);

  // Every piece of visible text with the boxes of its lines.
  const pieces = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest("style,script,title")) continue;
    if (!parent.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const folded = parent.closest(".long:not([open])");
    const end = folded ? folded.getBoundingClientRect().bottom : Infinity;
    for (const box of range.getClientRects())
      if (box.top < end - 2 && box.width > 1 && box.height > 1) pieces.push({ node, parent, box });
  }

  const block = (element) => {
    while (getComputedStyle(element).display === "inline") element = element.parentElement;
    return element;
  };
  for (const { node, parent, box } of pieces) {
    if (box.left < -1 || box.right > width + 1) say("outside the window", node.data);
    const svg = parent.closest("svg");
    const frame = (svg || block(parent)).getBoundingClientRect();
    if (box.left < frame.left - 1.5 || box.right > frame.right + 1.5)
      say("clipped or beside its box", node.data);
    if (svg && (box.top < frame.top - 1.5 || box.bottom > frame.bottom + 1.5))
      say("clipped or beside its box", node.data);
  }

  for (const table of document.querySelectorAll("table")) {
    const card = table.closest(".tabled,.card,section,main");
    if (card && table.checkVisibility() && table.getBoundingClientRect().right > card.getBoundingClientRect().right + 1.5)
      say("table beside its card", table.innerText);
  }

  // Text over text: glyphs fill about the middle two thirds of a line's box.
  const shrunk = pieces.map(({ node, parent, box }) => ({
    node, parent, left: box.left + 0.5, right: box.right - 0.5,
    top: box.top + box.height * 0.18, bottom: box.bottom - box.height * 0.18,
  })).sort((a, b) => a.top - b.top);
  for (let i = 0; i < shrunk.length; i++)
    for (let j = i + 1; j < shrunk.length && shrunk[j].top < shrunk[i].bottom; j++) {
      const a = shrunk[i], b = shrunk[j];
      if (a.node === b.node) continue;
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
          Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)
        say("overlap", `${a.node.data.trim()} / ${b.node.data.trim()}`);
    }

  // WCAG 2.2 contrast of text against the colours painted behind it.
  const parse = (text) => {
    const n = text.match(/[\d.]+/g).map(Number);
    return [n[0], n[1], n[2], n.length > 3 ? n[3] : 1];
  };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    return layers.reduceRight((below, top) => over(top, below), dark ? [0, 0, 0] : [255, 255, 255]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => {
      c /= 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const seen = new Set();
  for (const { node, parent } of pieces) {
    if (seen.has(parent)) continue;
    seen.add(parent);
    const style = getComputedStyle(parent);
    const ground = behind(parent);
    const ink = over(parse(parent.closest("svg") ? style.fill : style.color), ground);
    const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) say(`contrast ${ratio.toFixed(2)}`, node.data);
    if (parseFloat(style.fontSize) * scaleOf(parent) < 9) say("text too small", node.data);
  }
  function scaleOf(element) {
    const svg = element.closest("svg");
    return svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  }

  // Text above a pattern has no one contrast.
  const patterns = [...document.querySelectorAll(".track i,.split i")]
    .filter((i) => i.checkVisibility()).map((i) => i.getBoundingClientRect());
  for (const { node, box } of pieces)
    for (const { left, right, top, bottom } of patterns)
      if (Math.min(box.right, right) - Math.max(box.left, left) > 1 &&
          Math.min(box.bottom, bottom) - Math.max(box.top, top) > 4) say("text over a bar", node.data);

  // A frame with nothing in it: no text, no drawing; or a heading by itself.
  for (const frame of document.querySelectorAll(".card,.tabled,.factbox,.tiles>div")) {
    if (!frame.checkVisibility()) continue;
    const heading = [...frame.querySelectorAll("h2,h3,h4")].map((h) => h.innerText).join("");
    if (frame.innerText.trim().length <= heading.length && !frame.querySelector("svg"))
      say("empty card", heading || frame.className);
  }

  for (const svg of document.querySelectorAll("svg")) {
    if (!svg.checkVisibility()) continue;
    const titles = [...svg.querySelectorAll(".axis")].map((t) => t.textContent);
    const name = svg.getAttribute("aria-label") || "a chart";
    if (titles.length !== 2) say("axis without a title", name);
    else {
      if (!/FLOPS|OPS|B\/s|tokens\/s|loss|norm|load|损失|范数|负载|%|°C|W|Hz/.test(titles[0])) say("y axis without a unit", name);
      if (!/matmul|Elements|Bytes|FLOP per byte|^step$|^s since|矩阵乘|元素|字节|每字节|^步$|秒数/.test(titles[1])) say("x axis without a unit", name);
    }
  }
  return faults;
}
