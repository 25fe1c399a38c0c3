//! Checks of text: line width of sources, length of sentences, links, and terms that the glossary
//! lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The maximum line width of C and Rust, except for lines of Rust with a string literal.
const MAX_COLUMNS: usize = 100;
/// The maximum number of words in a sentence of a document. Authors should stay below 25.
const MAX_WORDS: usize = 40;
/// A copy of kernel declarations, which keeps the kernel's formatting.
const FOREIGN: [&str; 1] = ["bpf/vmlinux.h"];
/// The page whose bold words are this project's terms, and the page that must define them.
const CONCEPTS: &str = "docs/concepts.md";
const GLOSSARY: &str = "docs/glossary.md";

/// Checks every tracked source and document.
///
/// # Errors
/// The error lists each line that is too long, each long sentence, each dead link and each
/// undefined term.
pub fn check() -> Result<()> {
    let files = tracked_files()?;
    let mut breaches = Vec::new();
    let mut documents = BTreeMap::new();
    for path in &files {
        let is_source = ["rs", "c", "h"].iter().any(|end| has_extension(path, end));
        let is_document = has_extension(path, "md");
        if !(is_source || is_document) || FOREIGN.iter().any(|foreign| path == Path::new(foreign)) {
            continue;
        }
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        if is_source {
            breaches.extend(wide_lines(path, &text));
        } else {
            documents.insert(path.clone(), Document::parse(&text));
        }
    }
    for (path, document) in &documents {
        breaches.extend(document.long_sentences(path));
        breaches.extend(dead_links(path, document, &documents, &files));
    }
    breaches.extend(undefined_terms(&documents));
    if !breaches.is_empty() {
        bail!("{} breaches of the rules for text:\n  {}", breaches.len(), breaches.join("\n  "));
    }
    println!("{} documents and the sources: width, sentences, links and terms", documents.len());
    Ok(())
}

/// The files that git tracks, relative to the root of the repository.
fn tracked_files() -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("git").args(["ls-files", "-z"]).output().context("git ls-files")?;
    let names = String::from_utf8(output.stdout).context("git ls-files")?;
    Ok(names.split_terminator('\0').map(PathBuf::from).filter(|path| path.is_file()).collect())
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

fn wide_lines(path: &Path, text: &str) -> Vec<String> {
    let columns = |line: &str| line.chars().map(|c| if c == '\t' { 8 } else { 1 }).sum::<usize>();
    let exempt = if has_extension(path, "rs") { string_lines(text) } else { BTreeSet::new() };
    let lines = (1..).zip(text.lines());
    let wide = lines.filter(|(at, line)| columns(line) > MAX_COLUMNS && !exempt.contains(at));
    wide.map(|(at, _)| format!("{}:{at}: over {MAX_COLUMNS} columns", path.display())).collect()
}

/// The lines of Rust code that hold a string literal or a part of it.
fn string_lines(text: &str) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    let mut at = 0;
    let line_of = |at: usize| 1 + text[..at].matches('\n').count();
    while let Some(next) = text[at..].chars().next() {
        let rest = &text[at..];
        let raw = rest.strip_prefix('r').map(|raw| raw.trim_start_matches('#'));
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if next == '"' || raw.is_some_and(|raw| raw.starts_with('"')) {
            let len = string_len(rest);
            lines.extend(line_of(at)..=line_of(at + len));
            len
        } else if rest.starts_with("'\\") || rest.starts_with("'\"'") {
            3
        } else {
            next.len_utf8()
        };
        at = (at + len).min(text.len());
    }
    lines
}

/// The length of the string literal at the beginning of `text`, in bytes.
fn string_len(text: &str) -> usize {
    let start = text.find('"').map_or(0, |quote| quote + 1);
    if text.starts_with('r') {
        let end = format!("\"{}", "#".repeat(start - 2));
        return text[start..].find(&end).map_or(text.len(), |at| start + at + end.len());
    }
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(start) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The parts of a Markdown file that the checks need.
#[derive(Debug, Default)]
struct Document {
    /// Paragraphs, list items, headings and table cells, each with its line.
    blocks: Vec<(usize, String)>,
    /// Targets of links, each with its line.
    links: Vec<(usize, String)>,
    /// The identifiers that a link can name behind `#`.
    anchors: BTreeSet<String>,
    /// Words in bold, each with its line.
    bold: Vec<(usize, String)>,
    /// Words in italics, each with its line.
    italic: Vec<(usize, String)>,
    /// The first cell of each table row.
    row_titles: BTreeSet<String>,
}

impl Document {
    fn parse(text: &str) -> Self {
        let mut document = Self::default();
        let mut block = String::new();
        let (mut bold, mut italic): (Option<String>, Option<String>) = (None, None);
        let mut is_code = false;
        let mut cell = 0;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = 1 + text[..range.start].matches('\n').count();
            match event {
                Event::Start(Tag::CodeBlock(_)) => is_code = true,
                Event::End(TagEnd::CodeBlock) => is_code = false,
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::Strong) => bold = Some(String::new()),
                Event::End(TagEnd::Strong) => {
                    document.bold.extend(bold.take().map(|words| (line, words)));
                }
                Event::Start(Tag::Emphasis) => italic = Some(String::new()),
                Event::End(TagEnd::Emphasis) => {
                    document.italic.extend(italic.take().map(|words| (line, words)));
                }
                Event::Start(Tag::TableRow) => cell = 0,
                Event::Text(words) | Event::Code(words) if !is_code => {
                    block.push_str(&words);
                    for marked in [&mut bold, &mut italic].into_iter().flatten() {
                        marked.push_str(&words);
                    }
                }
                Event::SoftBreak | Event::HardBreak => block.push(' '),
                // A list inside of an item begins a new block.
                Event::Start(Tag::Item | Tag::List(_)) => document.end_block(line, &mut block),
                Event::End(TagEnd::Heading(_)) => {
                    document.anchors.insert(anchor(&block));
                    document.end_block(line, &mut block);
                }
                Event::End(TagEnd::TableCell) => {
                    if cell == 0 {
                        document.row_titles.insert(block.trim().to_lowercase());
                    }
                    cell += 1;
                    document.end_block(line, &mut block);
                }
                Event::End(TagEnd::Paragraph | TagEnd::Item) => {
                    document.end_block(line, &mut block);
                }
                _ => {}
            }
        }
        document
    }

    fn end_block(&mut self, line: usize, block: &mut String) {
        let text = std::mem::take(block);
        if !text.trim().is_empty() {
            self.blocks.push((line, text));
        }
    }

    fn long_sentences(&self, path: &Path) -> Vec<String> {
        let mut long = Vec::new();
        for (line, block) in &self.blocks {
            for sentence in sentences(block) {
                let words = sentence.split_whitespace().count();
                if words > MAX_WORDS {
                    let start: Vec<_> = sentence.split_whitespace().take(6).collect();
                    let start = start.join(" ");
                    let path = path.display();
                    long.push(format!("{path}:{line}: a sentence of {words} words: {start} ..."));
                }
            }
        }
        long
    }
}

/// Splits a block after each `.`, `!` and `?` that is followed by white space.
fn sentences(block: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut start = 0;
    for (at, end) in block.match_indices(['.', '!', '?']) {
        let next = at + end.len();
        if block[next..].starts_with(char::is_whitespace) {
            sentences.push(&block[start..next]);
            start = next;
        }
    }
    sentences.push(&block[start..]);
    sentences
}

/// The identifier of a heading: lower case, spaces as hyphens, no other punctuation.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

fn dead_links(
    path: &Path,
    document: &Document,
    documents: &BTreeMap<PathBuf, Document>,
    files: &BTreeSet<PathBuf>,
) -> Vec<String> {
    let mut dead = Vec::new();
    for (line, link) in &document.links {
        if link.contains("://") || link.starts_with("mailto:") {
            continue;
        }
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { path.to_owned() } else { joined(path, file) };
        let is_there =
            files.contains(&target) || files.iter().any(|file| file.starts_with(&target));
        let has_anchor = anchor.is_empty()
            || documents.get(&target).is_none_or(|document| document.anchors.contains(anchor));
        if !is_there {
            dead.push(format!("{}:{line}: no file {}", path.display(), target.display()));
        } else if !has_anchor {
            dead.push(format!("{}:{line}: no heading #{anchor}", path.display()));
        }
    }
    dead
}

/// The path of `link` in the file `path`, without `.` and `..`.
fn joined(path: &Path, link: &str) -> PathBuf {
    let mut joined = path.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => _ = joined.pop(),
            Component::Normal(name) => joined.push(name),
            _ => {}
        }
    }
    joined
}

/// Terms that are introduced but are no row of the glossary: bold words of the page of concepts,
/// and words in italics on all other pages except records.
fn undefined_terms(documents: &BTreeMap<PathBuf, Document>) -> Vec<String> {
    let (Some(concepts), Some(glossary)) =
        (documents.get(Path::new(CONCEPTS)), documents.get(Path::new(GLOSSARY)))
    else {
        return vec![format!("{CONCEPTS} or {GLOSSARY} is missing")];
    };
    let defined: BTreeSet<_> = glossary.row_titles.iter().flat_map(|row| row.split(", ")).collect();
    let is_defined = |term: &str| {
        let term = term.to_lowercase();
        defined.contains(term.as_str()) || defined.contains(term.trim_end_matches('s'))
    };
    let is_record = |path: &Path| {
        let folder = path.parent().and_then(Path::file_name);
        folder.is_some_and(|folder| folder == "adr" || folder == "results")
    };
    let pages = documents.iter().filter(|(path, _)| {
        !is_record(path) && path.as_path() != Path::new(GLOSSARY) && !path.ends_with("CHANGELOG.md")
    });
    let italic = pages.flat_map(|(path, page)| page.italic.iter().map(move |term| (&**path, term)));
    let bold = concepts.bold.iter().map(|term| (Path::new(CONCEPTS), term));
    let undefined = bold.chain(italic).filter(|(_, (_, term))| !is_defined(term));
    undefined
        .map(|(path, (line, term))| {
            format!("{}:{line}: {term:?} is not in {GLOSSARY}", path.display())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentence_is_found_when_shorter_ones_surround_it() {
        let long = "word ".repeat(MAX_WORDS + 1);
        let document = Document::parse(&format!("Short one. {long}end. Short `code. x` again."));
        let found = document.long_sentences(Path::new("a.md"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("a.md:1: a sentence of 42 words"), "{found:?}");
    }

    #[test]
    fn code_is_no_sentence() {
        let code = format!("```text\n{}\n```\n", "word ".repeat(60));
        assert!(Document::parse(&code).long_sentences(Path::new("a.md")).is_empty());
    }

    #[test]
    fn dead_links_are_found_when_file_or_heading_is_missing() {
        let text = "# The Top: `x`\n[a](b.md) [b](#the-top-x) [c](#other) [d](../README.md)";
        let files: BTreeSet<_> = ["docs/a.md", "README.md"].map(PathBuf::from).into();
        let documents = BTreeMap::from([(PathBuf::from("docs/a.md"), Document::parse(text))]);
        let path = Path::new("docs/a.md");
        let dead = dead_links(path, &documents[path], &documents, &files);
        assert_eq!(dead, ["docs/a.md:2: no file docs/b.md", "docs/a.md:2: no heading #other"]);
    }

    #[test]
    fn terms_are_found_when_the_glossary_lacks_them() {
        let concepts = Document::parse("**Known**, **knowns** and **new**.");
        let glossary = Document::parse("| word | meaning |\n|---|---|\n| known, other | x |\n");
        let documents = BTreeMap::from([(CONCEPTS.into(), concepts), (GLOSSARY.into(), glossary)]);
        assert_eq!(undefined_terms(&documents).len(), 1);
        let other = Document::parse("*Known*, *unheard* and **bold**.");
        let documents = [("docs/a.md".into(), other)].into_iter().chain(documents).collect();
        assert_eq!(undefined_terms(&documents).len(), 2);
    }

    #[test]
    fn wide_lines_are_found() {
        let wide = "x".repeat(MAX_COLUMNS - 2);
        let text =
            format!("//{wide}\n    // {wide}\nlet {wide}\nlet '\"' \"{wide}\"\n'\\'' {wide}\n");
        let found = wide_lines(Path::new("a.rs"), &text);
        let expected = [2, 3, 5].map(|line| format!("a.rs:{line}: over 100 columns"));
        assert_eq!(found, expected);
        assert_eq!(wide_lines(Path::new("a.h"), &text).len(), 4);
    }

    #[test]
    fn lines_of_strings_are_found_when_quotes_are_escaped_or_raw() {
        let text =
            "let a = \"b\\\"\nc\";\n// \"\nlet d = r#\"e\"\nf\"#;\nlet g: &'a str;\nr#\"\"#\n";
        assert_eq!(string_lines(text).into_iter().collect::<Vec<_>>(), [1, 2, 4, 5, 7]);
    }
}
