// @ts-check
// Before the first paint: the theme that the reader chose last. Without a choice the system decides.
"use strict";
try {
  const theme = localStorage.getItem("theme");
  const forced = matchMedia("(forced-colors: active)").matches; // the system's colours, on the system's background
  if (!forced && (theme === "dark" || theme === "light")) document.documentElement.dataset.theme = theme;
} catch {
  // A browser may refuse storage to a page on the disk; the system's theme stays.
}
