//! The report of a trust scenario: observations and criteria.

use std::fmt;

/// The result of a criterion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CriterionResult {
    /// The criterion is met.
    Pass,
    /// The criterion is not met.
    Fail,
}

impl CriterionResult {
    /// Returns [`CriterionResult::Pass`] if `good`.
    pub const fn of(good: bool) -> Self {
        if good { Self::Pass } else { Self::Fail }
    }
}

/// A line of a report.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Line {
    /// The subject.
    pub what: String,
    /// The observation, and the requirement if there is one.
    pub seen: String,
    /// The result; absent for an observation without a requirement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<CriterionResult>,
}

/// The report of a trust scenario.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct TrustReport {
    /// The lines, in their order.
    pub lines: Vec<Line>,
}

impl TrustReport {
    /// Adds an observation.
    pub fn note(&mut self, what: impl Into<String>, seen: impl Into<String>) {
        self.lines.push(Line { what: what.into(), seen: seen.into(), verdict: None });
    }

    /// Adds a criterion.
    pub fn judge(
        &mut self,
        verdict: CriterionResult,
        what: impl Into<String>,
        seen: impl Into<String>,
    ) {
        self.lines.push(Line { what: what.into(), seen: seen.into(), verdict: Some(verdict) });
    }

    /// Adds the lines of a part of the scenario.
    pub fn append(&mut self, part: &str, other: Self) {
        let lines = other.lines.into_iter();
        let named = |line: Line| Line { what: format!("{part}: {}", line.what), ..line };
        self.lines.extend(lines.map(named));
    }

    /// True when every criterion is met.
    pub fn passed(&self) -> bool {
        self.lines.iter().all(|line| line.verdict != Some(CriterionResult::Fail))
    }
}

impl fmt::Display for TrustReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Line { what, seen, verdict } in &self.lines {
            let mark = match verdict {
                None => "    ",
                Some(CriterionResult::Pass) => "ok  ",
                Some(CriterionResult::Fail) => "FAIL",
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
        let mut report = TrustReport::default();
        report.note("seen", "7");
        report.judge(CriterionResult::of(true), "memory", "flat");
        assert!(report.passed());
        report.judge(CriterionResult::of(false), "TCP kept", "0.50 (at least 0.80)");
        assert!(!report.passed());
        let text = "       seen: 7\n  ok   memory: flat\n  FAIL TCP kept: 0.50 (at least 0.80)\n";
        assert_eq!(report.to_string(), text);
    }
}
