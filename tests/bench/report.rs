//! Tests the HTML page of `weft-bench report` in a browser.

use super::run;
use std::process::{Command, Stdio};
use testkit::{require_program, require_root};

/// The published results of a run of all studies.
const RESULTS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/2026-11-23-bench/results.json");

/// A script that lists all elements that are wider than their containers.
const LOOK: &str = "<script>addEventListener('load', () => {
    const found = [];
    const page = document.documentElement;
    if (page.scrollWidth > page.clientWidth) found.push('the page is ' + page.scrollWidth + ' wide, its window ' + page.clientWidth);
    for (const text of document.querySelectorAll('svg text')) {
        const box = text.getBBox(), view = text.ownerSVGElement.viewBox.baseVal;
        const inside = box.x >= 0 && box.y >= 0 && box.x + box.width <= view.width && box.y + box.height <= view.height;
        if (!inside) found.push('text of a chart: ' + text.textContent);
    }
    for (const cell of document.querySelectorAll('td, th, p, li, h1, h2, h3')) {
        if (cell.scrollWidth > cell.clientWidth + 1 && !cell.closest('.scroll')) found.push('cut off: ' + cell.textContent.slice(0, 60));
    }
    const last = document.querySelector('.claims tr:last-child').getBoundingClientRect().bottom;
    if (innerWidth > 1000 && last > innerHeight) found.push('verdicts end at ' + last + ', the first screen at ' + innerHeight);
    document.body.dataset.looked = found.length ? found.join('; ') : 'nothing overflows';
});</script>";

#[test]
fn nothing_overflows_when_a_browser_shows_the_report() {
    require_root!();
    require_program!("chromium", "chromium");
    let directory = std::env::temp_dir().join(format!("weft-report-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let out = directory.to_str().unwrap();
    let (code, _, error) = run(&["report", RESULTS, "--out", out]);
    assert_eq!(code, 0, "{error}");
    let report = std::fs::read_to_string(directory.join("report.html")).unwrap();
    assert!(!report.contains("http://") && !report.contains("https://"), "it needs no network");
    assert!(report.matches("<svg").count() > 10, "every scenario has a chart");
    let page = directory.join("looked.html");
    std::fs::write(&page, report.replace("</body>", &format!("{LOOK}</body>"))).unwrap();
    for width in [1400, 500] {
        let browser = Command::new("timeout")
            .args(["120", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu"])
            .arg(format!("--user-data-dir={}", directory.join("profile").display()))
            .arg(format!("--window-size={width},1000"))
            .arg("--dump-dom")
            .arg(format!("file://{}", page.display()))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&browser.stdout).into_owned();
        let looked = text.split("data-looked=\"").nth(1).and_then(|rest| rest.split('"').next());
        assert_eq!(looked, Some("nothing overflows"), "at a width of {width}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
