/* A slider over frames with a button that plays them. `draw(frame)` draws one and returns its label. */
function player(box, draw) {
  const slider = box.querySelector("input[type=range]"), label = box.querySelector("output");
  const button = box.querySelector("button");
  let timer = null;
  function show() {
    const text = draw(Number(slider.value));
    label.textContent = text;
    slider.setAttribute("aria-valuetext", text);
  }
  function stop() { clearInterval(timer); timer = null; button.textContent = "play"; }
  button.addEventListener("click", () => {
    if (timer !== null) { stop(); return; }
    if (Number(slider.value) === Number(slider.max)) slider.value = 0;
    button.textContent = "pause";
    timer = setInterval(() => {
      slider.value = Number(slider.value) + 1; show();
      if (Number(slider.value) === Number(slider.max)) stop();
    }, 120);
  });
  slider.addEventListener("input", () => { if (timer !== null) stop(); show(); });
  return show;
}
