//! The command reference `docs/commands.md`, the man pages and the completions of shells, generated
//! from the same definitions as `--help`, and the tables of `docs/metrics.md`.
//!
//! This module is compiled for tests only, so that the daemon does not link the generators. The
//! tests fail when a committed page differs. `cargo xtask docs-generate` and `cargo xtask deb` set
//! [`WRITE`], and the tests then write the files.

use crate::{Cli, metrics};
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// With this environment variable the test writes its files instead of comparing them. Its value is
/// a directory: it gets `commands.md`, `metrics.md`, and the directories `man` and `completions`.
const WRITE: &str = "WEFT_WRITE_REFERENCE";

const INTRODUCTION: &str = "\
# Command reference

`weft` is the daemon and its tools. `weft-bench` measures; `weft demo` and `weft bench` start it.
Both programs print this text with `--help`. `cargo xtask docs-generate` writes this page and the
man pages from the same definitions.

";

#[test]
fn committed_command_reference_matches_the_help_texts() {
    let reference = reference();
    let Some(directory) = std::env::var_os(WRITE).map(PathBuf::from) else {
        let committed = document("commands.md");
        assert!(committed == reference, "docs/commands.md differs: run cargo xtask docs-generate");
        return;
    };
    let [man, completions] = ["man", "completions"].map(|name| directory.join(name));
    fs::create_dir_all(&man).unwrap();
    fs::create_dir_all(&completions).unwrap();
    fs::write(directory.join("commands.md"), reference).unwrap();
    // `weft bench` runs weft-bench: the page of the program replaces that of the subcommand.
    for mut program in programs() {
        clap_mangen::generate_to(program.clone(), &man).unwrap();
        let name = program.get_name().to_owned();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut program, &name, &completions).unwrap();
        }
    }
}

#[test]
fn committed_tables_of_metrics_match_the_families() {
    let page = document("metrics.md");
    let (before, rest) = page.split_once("<!-- families -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- /families -->").unwrap();
    let tables = metrics::document();
    let expected = format!("{before}<!-- families -->\n{tables}\n<!-- /families -->{after}");
    match std::env::var_os(WRITE).map(PathBuf::from) {
        Some(directory) => {
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("metrics.md"), expected).unwrap();
        }
        None => assert!(page == expected, "docs/metrics.md differs: run cargo xtask docs-generate"),
    }
}

#[test]
fn committed_list_of_log_messages_matches_the_table() {
    let page = document("log-messages.md");
    let (before, rest) = page.split_once("<!-- messages -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- /messages -->").unwrap();
    let mut rows: Vec<_> = messages::ALL.iter().collect();
    rows.sort_by_key(|message| message.id);
    let mut table = "| identifier | level | meaning | what to do |\n|---|---|---|---|\n".to_owned();
    for messages::Message { id, level, meaning, action } in rows {
        let level = level.as_str().to_lowercase();
        let action = if action.is_empty() { "nothing" } else { action };
        writeln!(table, "| `{id}` | {level} | {} | {} |", cell(meaning), cell(action)).unwrap();
    }
    let expected = format!("{before}<!-- messages -->\n{table}<!-- /messages -->{after}");
    match std::env::var_os(WRITE).map(PathBuf::from) {
        Some(directory) => {
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("log-messages.md"), expected).unwrap();
        }
        None => {
            assert!(
                page == expected,
                "docs/log-messages.md differs: run cargo xtask docs-generate"
            );
        }
    }
}

/// The text of a page in `docs/`.
fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(path).unwrap()
}

#[test]
fn examples_in_help_texts_are_valid_command_lines() {
    let mut count = 0;
    for program in programs() {
        for line in examples(&program) {
            let words = shell_words(&line);
            let result = program.clone().try_get_matches_from(&words);
            assert!(result.is_ok(), "{line}\n{words:?}\n{}", result.unwrap_err());
            count += 1;
        }
    }
    assert!(count > 60, "{count} examples found");
}

/// Pages of records name commands of earlier versions; this covers the other pages.
#[test]
fn commands_that_the_documents_name_exist() {
    let summary = document("SUMMARY.md");
    let pages = summary.split('(').skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let pages = pages.filter(|page| !page.contains('/') && *page != "commands.md");
    let (mut lines, mut fragments) = (0, 0);
    for page in pages.chain(["../README.md", "../SECURITY.md", "../CONTRIBUTING.md"]) {
        let text = document(page);
        for (index, part) in text.split("```").enumerate() {
            if index % 2 == 0 {
                for code in part.split('`').skip(1).step_by(2) {
                    let words: Vec<_> = code.split_whitespace().collect();
                    fragments += usize::from(is_known_fragment(page, &words));
                }
            } else if let Some(script) = part.strip_prefix("sh\n") {
                for line in script.replace("\\\n", " ").lines() {
                    lines += usize::from(is_valid_line(page, line.trim()));
                }
            }
        }
    }
    assert!(lines > 25 && fragments > 150, "{lines} lines, {fragments} fragments found");
}

/// True for a command line of one of the programs, which must accept it.
fn is_valid_line(page: &str, line: &str) -> bool {
    let line = line.strip_prefix("sudo ").unwrap_or(line);
    let Some(program) = programs().into_iter().find(|of| is_first(of, line)) else { return false };
    let mut words = shell_words(line);
    let is_of_the_shell = |word: &String| ["&", "&&", ";"].contains(&&**word) || word.contains('>');
    words.truncate(words.iter().position(is_of_the_shell).unwrap_or(words.len()));
    let result = program.try_get_matches_from(&words);
    assert!(result.is_ok(), "{page}: {line}\n{words:?}\n{}", result.unwrap_err());
    true
}

/// True for a part of a command line of one of the programs, whose subcommands and options must
/// exist. Arguments may be missing.
fn is_known_fragment(page: &str, words: &[&str]) -> bool {
    // `weft` hands the arguments of these two to `weft-bench`.
    let line = match words {
        ["weft", "bench", rest @ ..] => [&["weft-bench"], rest].concat().join(" "),
        ["weft", "demo", ..] => words.join(" ").replacen("weft", "weft-bench", 1),
        _ => words.join(" "),
    };
    let words: Vec<_> = line.split(' ').collect();
    let program = programs().into_iter().find(|of| is_first(of, &line));
    let Some(mut program) = program else { return false };
    // Adds `--help` and `--version`.
    program.build();
    let mut command = &program;
    for word in &words[1..] {
        if let Some(subcommand) = command.find_subcommand(word) {
            command = subcommand;
        } else if let Some(option) = word.strip_prefix("--") {
            let option = option.split('=').next();
            let is_option = |argument: &Arg| argument.get_long() == option;
            let mut arguments = program.get_arguments().chain(command.get_arguments());
            assert!(arguments.any(is_option), "{page}: `{line}`: no option {word:?}");
        } else {
            let takes_words = command.get_arguments().next().is_some();
            assert!(takes_words, "{page}: `{line}`: no subcommand {word:?}");
        }
    }
    true
}

fn is_first(program: &Command, line: &str) -> bool {
    line.strip_prefix(program.get_name()).is_some_and(|rest| rest.starts_with(' '))
}

fn programs() -> [Command; 2] {
    [Cli::command(), bench::cli::command()]
}

fn reference() -> String {
    let mut out = INTRODUCTION.to_owned();
    for mut program in programs() {
        program.build();
        section(&program, &mut out);
        for subcommand in visible_subcommands(&program) {
            section(subcommand, &mut out);
            for nested in visible_subcommands(subcommand) {
                section(nested, &mut out);
            }
        }
    }
    out.truncate(out.trim_end().len());
    out + "\n"
}

fn visible_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// Writes the chapter of one command: description, usage, subcommands, arguments and examples.
fn section(command: &Command, out: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_long_about().or(command.get_about()).unwrap();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").lines().map(str::trim).collect::<Vec<_>>();
    writeln!(out, "## {name}\n\n{}\n\n```text\n{}\n```\n", escape(about), usage.join("\n"))
        .unwrap();
    let subcommands: Vec<_> = visible_subcommands(command).collect();
    if !subcommands.is_empty() {
        out.push_str("| command | meaning |\n|---|---|\n");
        for subcommand in subcommands {
            let full_name = subcommand.get_bin_name().unwrap_or(subcommand.get_name());
            let about = subcommand.get_about().unwrap();
            let anchor = full_name.replace(' ', "-");
            writeln!(out, "| [{full_name}](#{anchor}) | {} |", cell(&about.to_string())).unwrap();
        }
        out.push('\n');
    }
    let is_listed =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let arguments: Vec<_> = command.get_arguments().filter(is_listed).collect();
    if !arguments.is_empty() {
        out.push_str("| argument | meaning |\n|---|---|\n");
        for argument in arguments {
            writeln!(out, "| `{}` | {} |", signature(argument), cell(&meaning(argument))).unwrap();
        }
        out.push('\n');
    }
    if let Some(text) = command.get_after_help() {
        for block in text.to_string().split("\n\n") {
            match block.split_once(":\n") {
                Some((title, lines)) => {
                    writeln!(out, "{title}:\n\n```text\n{}\n```\n", unindented(lines)).unwrap();
                }
                None => writeln!(out, "{}\n", escape(block)).unwrap(),
            }
        }
    }
}

/// `-w, --write <FILE>`
fn signature(argument: &Arg) -> String {
    let short = argument.get_short().map_or_else(String::new, |short| format!("-{short}, "));
    short + &argument.to_string()
}

/// The help of an argument with its default and possible values.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
    let mut text = help.unwrap_or_default();
    if argument.get_action().takes_values() {
        let values = argument.get_possible_values();
        let values: Vec<_> = values.iter().filter(|value| !value.is_hide_set()).collect();
        for (index, value) in values.iter().enumerate() {
            let separator = if index == 0 { ": " } else { "; " };
            let help = value.get_help().map_or_else(String::new, |help| format!(" ({help})"));
            write!(text, "{separator}`{}`{help}", value.get_name()).unwrap();
        }
        let defaults = argument.get_default_values();
        let defaults: Vec<_> = defaults.iter().map(|value| value.to_string_lossy()).collect();
        if !defaults.is_empty() && !argument.is_hide_default_value_set() {
            write!(text, " [default: {}]", defaults.join(" ")).unwrap();
        }
    }
    text
}

/// Text for a table cell.
fn cell(text: &str) -> String {
    escape(text).replace('|', "\\|").replace('\n', " ")
}

/// Markdown would take angle brackets for HTML and lone asterisks for emphasis.
fn escape(text: impl ToString) -> String {
    text.to_string().replace('<', "&lt;").replace('*', "\\*")
}

fn unindented(lines: &str) -> String {
    lines.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

/// The command lines of the program in the help texts of all its commands.
fn examples(program: &Command) -> Vec<String> {
    let mut found = Vec::new();
    let mut commands = vec![program];
    while let Some(command) = commands.pop() {
        commands.extend(visible_subcommands(command));
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter(|line| line.starts_with("  ")) {
            let start = line.find(&format!("{} ", program.get_name()));
            found.extend(start.map(|start| line[start..].to_owned()));
        }
    }
    found
}

/// The words of the first command of a shell command line. Two consecutive spaces start the
/// explanation that follows the command in some examples.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\'' | '"' if quote.is_none() => quote = Some(character),
            _ if quote == Some(character) => quote = None,
            '|' if quote.is_none() => break,
            ' ' if quote.is_none() => {
                words.push(std::mem::take(&mut word));
                if characters.peek() == Some(&' ') {
                    break;
                }
            }
            _ => word.push(character),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}
