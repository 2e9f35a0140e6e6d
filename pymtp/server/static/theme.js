// The theme: light, dark or the system's. This script runs before the page is drawn; otherwise the page would flash.

(() => {
  const NAME = "pymtp.theme";
  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  const stored = localStorage.getItem(NAME) ?? "auto";
  apply(stored);
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = stored;
    choice.addEventListener("change", () => {
      localStorage.setItem(NAME, choice.value);
      apply(choice.value);
    });
  });
})();
