//! Parses the description of a packet, as `weft trace` takes it.

use super::compile::{mask_of, rows_of};
use super::{Expr, Node, parse};
use crate::error::SyntaxError;
use crate::lexer::Lexer;
use crate::scope::Scope;
use crate::symbol::Symbol;
use crate::token::TokenKind;
use flow::{Field, FlowKey, Match, Subfield};
use pipeline::Predicate;

/// The TPID of a VLAN tag (IEEE 802.1Q), for packets described as tagged.
const TPID_VLAN: u128 = 0x8100;

/// A described packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Microflow {
    /// The flow key; fields that the description does not mention are 0.
    pub key: FlowKey,
    /// The name of the logical ingress port.
    pub inport: Option<String>,
}

/// Parses the description of a packet: an expression that gives each field a value, such as `inport
/// == "vm1" && eth.dst == 00:00:00:00:00:02 && ip4.src == 10.0.0.1 && tcp.dst == 80`. Prerequisites
/// of the fields (here `eth.type` and `ip.proto`) are implied.
///
/// # Errors
///
/// The text is not an expression, contradicts itself, leaves a choice between values, or names a
/// port or a set that is not in the scope.
pub fn parse_microflow(text: &str, scope: &impl Scope) -> Result<Microflow, SyntaxError> {
    let expr = parse(text)?;
    if let Some(name) = unknown_port(&expr, scope) {
        let message = format!("There is no logical port `{name}'.");
        return Err(SyntaxError::new(span_of_string(text, name), message));
    }
    let everywhere = |message: String| SyntaxError::new(0..text.len(), message);
    let predicate = expr.lower(scope).map_err(|error| everywhere(error.to_string()))?;
    let compiled = rows_of(predicate);
    let choice = |field: &str| {
        everywhere(format!("Constraints are ambiguous: {field} could have several values."))
    };
    let row = match (&compiled.rows[..], &compiled.residual) {
        ([], _) => return Err(everywhere("Constraints are contradictory.".to_owned())),
        ([row], None) => row,
        (rows @ [_, _, ..], _) => return Err(choice(name_of(differing(rows)))),
        (_, Some(residual)) => return Err(choice(name_of(first_field(residual)))),
    };
    let inport = expr.inport().map(str::to_owned);
    Ok(Microflow { key: key_of(row), inport })
}

fn key_of(row: &Match) -> FlowKey {
    let mut key = row.key().clone();
    let present = Subfield::bit(Field::VlanTci, 12).is_some_and(|bit| key.get_bits(bit) == 1);
    if present && key.get(Field::VlanTpid) == 0 {
        key.set(Field::VlanTpid, TPID_VLAN);
    }
    key
}

fn unknown_port<'a>(expr: &'a Expr, scope: &impl Scope) -> Option<&'a str> {
    let mut unknown = None;
    expr.0.visit(&mut |node| {
        if let Node::Port(test) = node
            && unknown.is_none()
            && scope.port(&test.port).is_none()
        {
            unknown = Some(&*test.port);
        }
    });
    unknown
}

/// The span of a quoted string in a text.
pub(crate) fn span_of_string(text: &str, quoted: &str) -> std::ops::Range<usize> {
    let mut lexer = Lexer::new(text);
    loop {
        match lexer.kind() {
            TokenKind::Text(found) if found == quoted => return lexer.span(),
            TokenKind::End => return 0..text.len(),
            _ => lexer.advance(),
        };
    }
}

/// The first field in which rows differ.
fn differing(rows: &[Match]) -> Option<Field> {
    let first = rows.first()?;
    let differs = |field: Field| {
        let field_bits = |row: &Match| (row.key().get(field), row.mask().get(field));
        rows.iter().any(|row| field_bits(row) != field_bits(first))
    };
    mask_of(rows).fields().map(|(field, _)| field).find(|&field| differs(field))
}

fn first_field(predicate: &Predicate) -> Option<Field> {
    match predicate {
        Predicate::All(parts) | Predicate::Any(parts) => parts.iter().find_map(first_field),
        Predicate::Masked { field, .. } => Some(*field),
        Predicate::OneOf { bits, .. } | Predicate::InRanges { bits, .. } => Some(bits.field()),
        Predicate::Not(inner) => first_field(inner),
    }
}

/// The name of a field in the language.
fn name_of(field: Option<Field>) -> &'static str {
    let named = |field: Field| {
        let whole = Some(Subfield::whole(field));
        let symbol = Symbol::all().iter().find(|symbol| symbol.bits() == whole);
        symbol.map_or(field.name(), |symbol| symbol.name)
    };
    field.map_or("a field", named)
}
