// Light and dark: the system's theme, until the reader chooses one. The browser stores the choice if it may.

const THEME_KEY = "grace-store-theme";
const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");

function savedTheme() {
  try {
    return window.localStorage.getItem(THEME_KEY);
  } catch {
    return null; // a browser may forbid local storage for files
  }
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme-button").setAttribute("aria-label", name === "dark" ? "Use light colours" : "Use dark colours");
  restylePlots();
}

function toggleTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    window.localStorage.setItem(THEME_KEY, next);
  } catch {
    // without local storage, the choice lasts until the page is closed
  }
  setTheme(next);
}

function startTheme() {
  const follow = () => setTheme(savedTheme() || (systemIsDark.matches ? "dark" : "light"));
  systemIsDark.addEventListener("change", follow);
  byId("theme-button").addEventListener("click", toggleTheme);
  follow();
}
