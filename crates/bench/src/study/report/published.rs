//! The tables of the published studies, as committed with this crate.

use std::fmt::Write;

use crate::study::model::Study;

/// The published table of a study.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published {
    /// The publisher, and the machines of the published study.
    pub source: String,
    /// The names of the columns.
    pub columns: Vec<&'static str>,
    /// The rows, each as long as `columns`.
    pub rows: Vec<Vec<&'static str>>,
}

/// The published table of `study`, if there is one. The QinQ study has only graphs, without
/// numbers.
pub fn published(study: Study) -> Option<Published> {
    let text = match study {
        Study::SoftwareTunnelling => include_str!("../../../published/software-tunnelling.csv"),
        Study::JumboFrames => include_str!("../../../published/jumbo-frames.csv"),
        Study::GeneveVsVxlan => include_str!("../../../published/geneve-vs-vxlan.csv"),
        _ => return None,
    };
    let (notes, lines): (Vec<&str>, Vec<&str>) =
        text.lines().filter(|line| !line.is_empty()).partition(|line| line.starts_with('#'));
    let notes: Vec<_> = notes.iter().map(|line| line.trim_start_matches(['#', ' '])).collect();
    let mut lines = lines.into_iter().map(|line| line.split(',').collect::<Vec<_>>());
    let columns = lines.next()?;
    let rows = lines.filter(|row| row.len() == columns.len()).collect();
    Some(Published { source: notes.join(". "), columns, rows })
}

/// The published table of `study` as Markdown.
pub(super) fn markdown(study: Study) -> Option<String> {
    let Published { source, columns, rows } = published(study)?;
    let mut text =
        format!("{source}\n\n| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for row in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_row_is_read() {
        let rows = |study| published(study).map(|p| (p.columns.len(), p.rows.len()));
        assert_eq!(rows(Study::SoftwareTunnelling), Some((5, 7)));
        assert_eq!(rows(Study::JumboFrames), Some((4, 7)));
        assert_eq!(rows(Study::GeneveVsVxlan), Some((5, 24)));
        assert_eq!(rows(Study::Qinq), None);
    }
}
