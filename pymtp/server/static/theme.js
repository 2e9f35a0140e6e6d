// The theme: light, dark or the system's. This script runs before the page is drawn; otherwise the page would flash.

(() => {
  const NAME = "pymtp.theme";
  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  let stored = "auto";
  let store = () => {};
  try {
    stored = localStorage.getItem(NAME) ?? "auto";
    store = (theme) => {
      try {
        localStorage.setItem(NAME, theme);
      } catch {
        // the storage is full, so the choice lasts until the page is left
      }
    };
  } catch {
    // this browser stores nothing, so the choice lasts until the page is left
  }
  apply(stored);
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = stored;
    choice.addEventListener("change", () => {
      store(choice.value);
      apply(choice.value);
    });
  });
})();
