//! `[underlay]`.

use super::Setting;
use super::acl::word;
use crate::errors::ProblemCollector;
use crate::section::{Field, Schema, key};

pub(super) const UNDERLAY: Schema =
    Schema { name: "[underlay]", keys: &[key("authenticate", "authenticate = \"reverse-path\"")] };

/// The words of `authenticate`, and whether each checks the reverse path.
pub(super) const AUTHENTICATE: [(&str, bool); 2] = [("none", false), ("reverse-path", true)];

/// Reads whether packets are accepted only from end points to which a route leads over the uplink.
pub(super) fn checks_reverse_path(
    report: &mut ProblemCollector<'_>,
    field: Option<Field<'_, '_>>,
) -> Setting<bool> {
    let Some(field) = field else { return Setting::Default };
    let Some(section) = field.table(report, &UNDERLAY) else { return Setting::Wrong };
    Setting::of(section.get("authenticate"), |field| word(report, field, "check", &AUTHENTICATE))
}
