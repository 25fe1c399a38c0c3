//! Prints expressions in canonical form.

use super::{Expr, Node, NumberTest, Relation};
use crate::symbol::Level;
use crate::token::{Hex, Quoted, bit_length};
use std::fmt;

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        })
    }
}

const fn equality(negated: bool) -> &'static str {
    if negated { "!=" } else { "==" }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(value) => write!(f, "{}", u8::from(*value)),
            Self::Number(test) => write!(f, "{test}"),
            Self::Port(test) => {
                let name = test.symbol.symbol().name;
                write!(f, "{name} {} {}", equality(test.negated), Quoted(&test.port))
            }
            Self::Set(test) => {
                let sign = if test.field.is_text() { '@' } else { '$' };
                write!(f, "{} {} {sign}{}", test.field, equality(test.negated), test.name)
            }
            Self::Resident(test) => {
                let not = if test.negated { "!" } else { "" };
                write!(f, "{not}is_chassis_resident({})", Quoted(&test.port))
            }
            Self::All(parts) => write_parts(f, parts, " && "),
            Self::Any(parts) => write_parts(f, parts, " || "),
        }
    }
}

fn write_parts(f: &mut fmt::Formatter<'_>, parts: &[Node], between: &str) -> fmt::Result {
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            f.write_str(between)?;
        }
        match part {
            Node::All(_) | Node::Any(_) => write!(f, "({part})")?,
            _ => write!(f, "{part}")?,
        }
    }
    Ok(())
}

impl fmt::Display for NumberTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let symbol = self.symbol.symbol();
        let first = self.mask.trailing_zeros() % 128;
        let width = self.mask.count_ones();
        let contiguous = width > 0 && u32::from(bit_length(self.mask)) == first + width;
        let whole = width == u32::from(symbol.width);
        // Bits of a nominal field cannot be selected, so they are printed as a mask.
        if !contiguous || symbol.level == Level::Nominal && !whole {
            let (value, mask) = (Hex(self.value), Hex(self.mask));
            return write!(f, "{} {} {value}/{mask}", symbol.name, self.relation);
        }
        let value = self.value >> first;
        if width == 1 && self.relation == Relation::Equal && value == 0 {
            f.write_str("!")?;
        }
        f.write_str(symbol.name)?;
        match (whole, width) {
            (true, _) => {}
            (false, 1) => write!(f, "[{first}]")?,
            (false, _) => write!(f, "[{first}..{}]", first + width - 1)?,
        }
        if width == 1 && self.relation == Relation::Equal {
            return Ok(());
        }
        write!(f, " {} {}", self.relation, Hex(value))
    }
}
