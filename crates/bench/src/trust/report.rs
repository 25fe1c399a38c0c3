//! What a scenario found, and whether that is good enough.

use std::fmt;

/// Whether a criterion is met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is.
    Pass,
    /// It is not.
    Fail,
}

impl Verdict {
    /// [`Verdict::Pass`] if `good`.
    pub const fn of(good: bool) -> Self {
        if good { Self::Pass } else { Self::Fail }
    }
}

/// A line of an outcome.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Line {
    /// What was looked at.
    pub what: String,
    /// What was seen, and what was asked for.
    pub seen: String,
    /// Absent from what is only told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// All that a scenario found.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Outcome {
    /// In the order in which it was found.
    pub lines: Vec<Line>,
}

impl Outcome {
    /// Tells something.
    pub fn note(&mut self, what: impl Into<String>, seen: impl Into<String>) {
        self.lines.push(Line { what: what.into(), seen: seen.into(), verdict: None });
    }

    /// Tells whether a criterion is met.
    pub fn judge(&mut self, verdict: Verdict, what: impl Into<String>, seen: impl Into<String>) {
        self.lines.push(Line { what: what.into(), seen: seen.into(), verdict: Some(verdict) });
    }

    /// True when every criterion is met.
    pub fn passed(&self) -> bool {
        self.lines.iter().all(|line| line.verdict != Some(Verdict::Fail))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Line { what, seen, verdict } in &self.lines {
            let mark = match verdict {
                None => "    ",
                Some(Verdict::Pass) => "ok  ",
                Some(Verdict::Fail) => "FAIL",
            };
            writeln!(f, "  {mark} {what}: {seen}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_fails_when_one_criterion_does() {
        let mut outcome = Outcome::default();
        outcome.note("seen", "7");
        outcome.judge(Verdict::of(true), "memory", "flat");
        assert!(outcome.passed());
        outcome.judge(Verdict::of(false), "TCP kept", "0.50 (at least 0.80)");
        assert!(!outcome.passed());
        let text = "       seen: 7\n  ok   memory: flat\n  FAIL TCP kept: 0.50 (at least 0.80)\n";
        assert_eq!(outcome.to_string(), text);
    }
}
