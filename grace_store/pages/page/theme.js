// Light and dark: as the system has it until the reader says otherwise, which is remembered where that is allowed.

const THEME_KEY = "grace-store-theme";
const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");

function savedTheme() {
  try {
    return window.localStorage.getItem(THEME_KEY);
  } catch {
    return null; // files may be denied a memory
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
    // it holds for this visit then
  }
  setTheme(next);
}

function startTheme() {
  const follow = () => setTheme(savedTheme() || (systemIsDark.matches ? "dark" : "light"));
  systemIsDark.addEventListener("change", follow);
  byId("theme-button").addEventListener("click", toggleTheme);
  follow();
}
