// Light, dark, or as the system is. Runs before the page is drawn, so that it never flashes.

(() => {
  const NAME = "pymtp.theme";
  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  const kept = localStorage.getItem(NAME) ?? "auto";
  apply(kept);
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = kept;
    choice.addEventListener("change", () => {
      localStorage.setItem(NAME, choice.value);
      apply(choice.value);
    });
  });
})();
