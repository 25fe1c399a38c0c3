//! Parses match expressions.

use super::{Expr, Junction, Node, NumberTest, PortTest, Relation, ResidentTest, SetTest};
use crate::error::SyntaxError;
use crate::lexer::Lexer;
use crate::symbol::{FieldRef, Level, SymbolMeaning};
use crate::token::{Constant, Format, TokenKind};
use std::borrow::Cow;
use std::ops::Range;

/// The limit on nested parentheses.
const MAX_DEPTH: u32 = 100;

const RANGE_FORM: &str = "Range expressions must have the form `x < field < y' or `x > field > y', with each `<' \
                          optionally replaced by `<=' or `>' by `>=').";

/// Parses a match expression, and checks that its comparisons are valid for their fields.
///
/// # Errors
///
/// The text is not an expression. The error points at the wrong token.
pub fn parse(text: &str) -> Result<Expr, SyntaxError> {
    let mut parser = Parser { lexer: Lexer::new(text), negated: false, depth: 0 };
    let node = parser.expression()?;
    parser.lexer.expect(&TokenKind::End)?;
    Ok(Expr(node))
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    /// True inside an odd number of `!`.
    negated: bool,
    depth: u32,
}

/// The constants on one side of a comparison: one, or several in braces. All are numbers, or all
/// are strings.
struct Constants<'a> {
    span: Range<usize>,
    in_curlies: bool,
    are_texts: bool,
    list: Vec<(Range<usize>, Value<'a>)>,
}

enum Value<'a> {
    Number(Constant),
    Text(Cow<'a, str>),
    /// `$name` in a list of numbers, `@name` in a list of strings.
    Set(&'a str),
}

/// A field and its position.
struct LocatedField {
    field: FieldRef,
    span: Range<usize>,
}

impl<'a> Parser<'a> {
    /// Operands joined by one kind of operator.
    fn expression(&mut self) -> Result<Node, SyntaxError> {
        let mut node = self.operand()?;
        let operator = self.lexer.kind().clone();
        let junction = match operator {
            TokenKind::And => Junction::All,
            TokenKind::Or => Junction::Any,
            _ => return Ok(node),
        };
        while self.lexer.accept(&operator) {
            node = Node::combine(junction, node, self.operand()?);
        }
        if matches!(self.lexer.kind(), TokenKind::And | TokenKind::Or) {
            return Err(self.lexer.error("&& and || must be parenthesized when used together."));
        }
        Ok(node)
    }

    /// A primary, optionally after `!`.
    fn operand(&mut self) -> Result<Node, SyntaxError> {
        if !self.lexer.accept(&TokenKind::Not) {
            return Ok(self.primary()?.0);
        }
        self.negated = !self.negated;
        let start = self.lexer.span().start;
        let primary = self.primary();
        self.negated = !self.negated;
        match primary? {
            (node, true) => Ok(node.negated()),
            (_, false) => {
                let span = start..self.lexer.span().start;
                Err(SyntaxError::new(span, "Missing parentheses around operand of !."))
            }
        }
    }

    /// A primary, and whether `!` may precede it without parentheses.
    fn primary(&mut self) -> Result<(Node, bool), SyntaxError> {
        match self.lexer.kind() {
            TokenKind::LeftParen => self.parentheses(),
            TokenKind::Template(_) => Err(self.lexer.error("Unexpanded template.")),
            TokenKind::Identifier("is_chassis_resident")
                if self.lexer.lookahead().kind == TokenKind::LeftParen =>
            {
                self.chassis_resident()
            }
            TokenKind::Identifier(_) => self.field_first(),
            _ => self.constant_first(),
        }
    }

    fn parentheses(&mut self) -> Result<(Node, bool), SyntaxError> {
        if self.depth >= MAX_DEPTH {
            return Err(self.lexer.error("Parentheses nested too deeply."));
        }
        self.lexer.advance();
        self.depth += 1;
        let node = self.expression()?;
        self.depth -= 1;
        self.lexer.expect(&TokenKind::RightParen)?;
        Ok((node, true))
    }

    fn chassis_resident(&mut self) -> Result<(Node, bool), SyntaxError> {
        self.lexer.advance();
        self.lexer.advance();
        let TokenKind::Text(port) = self.lexer.kind() else {
            return Err(self.lexer.expecting("string"));
        };
        let port = port.as_ref().into();
        self.lexer.advance();
        self.lexer.expect(&TokenKind::RightParen)?;
        Ok((Node::Resident(ResidentTest { negated: false, port }), true))
    }

    /// `field`, or `field relation constants`.
    fn field_first(&mut self) -> Result<(Node, bool), SyntaxError> {
        let located = self.field()?;
        if let Some(relation) = self.accept_relation() {
            let constants = self.constants()?;
            return Ok((self.compare(&located, relation, &constants)?, false));
        }
        let field = located.field;
        if field.is_text() || *self.lexer.kind() == TokenKind::Assign {
            return Err(self.lexer.expecting("relational operator"));
        }
        if field.width() > 1 && !self.negated {
            return Err(SyntaxError::new(
                located.span,
                "Explicit `!= 0' is required for inequality test of multibit field against 0.",
            ));
        }
        let zero = Value::Number(Constant::new(0, Format::Hexadecimal));
        let constants = Constants {
            span: located.span.clone(),
            in_curlies: false,
            are_texts: false,
            list: vec![(located.span.clone(), zero)],
        };
        Ok((self.compare(&located, Relation::NotEqual, &constants)?, true))
    }

    /// `constants relation field`, `constant < field < constant`, or `0` or `1` alone.
    fn constant_first(&mut self) -> Result<(Node, bool), SyntaxError> {
        let first = self.constants()?;
        let Some(left) = self.accept_relation() else {
            return match first.list[..] {
                [(_, Value::Number(Constant { value, mask: None, format: Format::Decimal }))]
                    if value <= 1 && !first.in_curlies =>
                {
                    Ok((Node::Constant(value == 1), true))
                }
                _ => Err(self.lexer.expecting("relational operator")),
            };
        };
        let located = self.field()?;
        let operator = self.lexer.span();
        let Some(right) = self.accept_relation() else {
            return Ok((self.compare(&located, left.swapped(), &first)?, false));
        };
        let second = self.constants()?;
        let up = |relation| matches!(relation, Relation::Less | Relation::LessOrEqual);
        if !left.is_order() || !right.is_order() || up(left) != up(right) {
            return Err(SyntaxError::new(operator, RANGE_FORM));
        }
        let low = self.compare(&located, left.swapped(), &first)?;
        let high = self.compare(&located, right, &second)?;
        Ok((Node::combine(Junction::All, low, high), false))
    }

    fn field(&mut self) -> Result<LocatedField, SyntaxError> {
        let start = self.lexer.span().start;
        let is_call = |lexer: &Lexer<'_>| lexer.lookahead().kind == TokenKind::LeftParen;
        let field = FieldRef::parse_symbol(&mut self.lexer).map_err(|error| match error.span {
            ref span if span.start == start && is_call(&self.lexer) => {
                self.lexer.expecting("function name")
            }
            _ => error,
        })?;
        let behind = self.lexer.span().start;
        let length = self.lexer.text(start..behind).trim_end().len();
        let span = start..start + length;
        if field.symbol().meaning == SymbolMeaning::IcmpMtu {
            let message = format!("Field {} cannot be matched.", field.name());
            return Err(SyntaxError::new(span, message));
        }
        Ok(LocatedField { field, span })
    }

    fn accept_relation(&mut self) -> Option<Relation> {
        let relation = match self.lexer.kind() {
            TokenKind::Equal => Relation::Equal,
            TokenKind::NotEqual => Relation::NotEqual,
            TokenKind::Less => Relation::Less,
            TokenKind::LessOrEqual => Relation::LessOrEqual,
            TokenKind::Greater => Relation::Greater,
            TokenKind::GreaterOrEqual => Relation::GreaterOrEqual,
            _ => return None,
        };
        self.lexer.advance();
        Some(relation)
    }

    /// One constant, or several in curly braces, with or without commas.
    fn constants(&mut self) -> Result<Constants<'a>, SyntaxError> {
        let start = self.lexer.span().start;
        let in_curlies = self.lexer.accept(&TokenKind::LeftCurly);
        let mut list = Vec::with_capacity(1);
        let mut are_texts = None;
        let end = loop {
            let span = self.lexer.span();
            let value = self.constant(&mut are_texts)?;
            let end = span.end;
            list.push((span, value));
            if !in_curlies {
                break end;
            }
            self.lexer.accept(&TokenKind::Comma);
            let end = self.lexer.span().end;
            if self.lexer.accept(&TokenKind::RightCurly) {
                break end;
            }
        };
        Ok(Constants { span: start..end, in_curlies, are_texts: are_texts == Some(true), list })
    }

    /// A constant of the same kind as those before it.
    fn constant(&mut self, are_texts: &mut Option<bool>) -> Result<Value<'a>, SyntaxError> {
        let is_text = match self.lexer.kind() {
            TokenKind::Template(_) => return Err(self.lexer.error("Unexpanded template.")),
            TokenKind::Text(_) | TokenKind::PortGroup(_) => true,
            TokenKind::Integer(_) | TokenKind::AddressSet(_) => false,
            _ => return Err(self.lexer.expecting("constant")),
        };
        match *are_texts.get_or_insert(is_text) {
            texts if texts == is_text => {}
            true => return Err(self.lexer.expecting("string")),
            false => return Err(self.lexer.expecting("integer")),
        }
        match self.lexer.advance().kind {
            TokenKind::Text(text) => Ok(Value::Text(text)),
            TokenKind::Integer(number) => Ok(Value::Number(number)),
            TokenKind::AddressSet(name) | TokenKind::PortGroup(name) => Ok(Value::Set(name)),
            _ => Err(self.lexer.expecting("constant")),
        }
    }

    /// A comparison. It must be valid for the field.
    fn compare(
        &self,
        located: &LocatedField,
        relation: Relation,
        constants: &Constants<'a>,
    ) -> Result<Node, SyntaxError> {
        check_type(located.field, constants)?;
        if relation.is_order() {
            check_order(located, constants)?;
        }
        if located.field.symbol().level == Level::Nominal {
            self.check_nominal(located, relation, constants)?;
        }
        let negated = relation == Relation::NotEqual;
        let field = located.field;
        let mut tests = constants.list.iter().map(|(_, value)| match value {
            Value::Number(number) => Node::Number(number_test(field, relation, number)),
            Value::Text(port) => {
                Node::Port(PortTest { symbol: field.id(), negated, port: port.as_ref().into() })
            }
            Value::Set(name) => Node::Set(SetTest { field, negated, name: (*name).into() }),
        });
        match (constants.list.len(), relation) {
            (1, _) => tests.next().ok_or_else(|| self.lexer.expecting("constant")),
            (_, Relation::Equal) => Ok(Node::Any(tests.collect())),
            _ => Ok(Node::All(tests.collect())),
        }
    }

    /// Nominal fields can only be tested for equality, and predicates on them cannot be negated.
    fn check_nominal(
        &self,
        located: &LocatedField,
        relation: Relation,
        constants: &Constants<'a>,
    ) -> Result<(), SyntaxError> {
        let name = located.field.name();
        let whole =
            located.span.start.min(constants.span.start)..located.span.end.max(constants.span.end);
        let equal = (relation == Relation::Equal) != self.negated;
        if !matches!(located.field.symbol().meaning, SymbolMeaning::Predicate(_)) {
            return if equal {
                Ok(())
            } else {
                Err(SyntaxError::new(
                    whole,
                    format!(
                        "Nominal field {name} may only be tested for equality (taking enclosing \
                         `!' operators into \
                         account)."
                    ),
                ))
            };
        }
        let affirmed = |value: &Value<'_>| match value {
            Value::Number(number) => (number.value & 1 == 1) == equal,
            _ => false,
        };
        if constants.list.iter().all(|(_, value)| affirmed(value)) {
            return Ok(());
        }
        Err(SyntaxError::new(
            whole,
            format!(
                "Nominal predicate {name} may only be tested positively, e.g. `{name}' or `{name} \
                 == 1' but not \
                 `!{name}' or `{name} == 0'."
            ),
        ))
    }
}

/// Checks that number fields are compared with numbers that fit, and port fields with strings.
fn check_type(field: FieldRef, constants: &Constants<'_>) -> Result<(), SyntaxError> {
    let name = field.name();
    if field.is_text() != constants.are_texts {
        let (kind, other) =
            if field.is_text() { ("String", "integer") } else { ("Integer", "string") };
        let message = format!("{kind} field {name} is not compatible with {other} constant.");
        return Err(SyntaxError::new(constants.span.clone(), message));
    }
    let field_width = field.symbol_width();
    for (span, value) in &constants.list {
        match value {
            Value::Number(number) if number.width() > field_width => {
                let width = number.width();
                return Err(SyntaxError::new(
                    span.clone(),
                    format!(
                        "{width}-bit constant is not compatible with {field_width}-bit field \
                         {name}."
                    ),
                ));
            }
            Value::Set(_) if matches!(field.symbol().meaning, SymbolMeaning::Predicate(_)) => {
                let message = format!("Predicate {name} cannot be compared with a set.");
                return Err(SyntaxError::new(span.clone(), message));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks that `<`, `<=`, `>` and `>=` compare an ordinal field with one number.
fn check_order(located: &LocatedField, constants: &Constants<'_>) -> Result<(), SyntaxError> {
    let error = |message: String| Err(SyntaxError::new(constants.span.clone(), message));
    let symbol = located.field.symbol();
    match constants.list[..] {
        _ if constants.in_curlies => {
            error("Only == and != operators may be used with value sets.".into())
        }
        _ if symbol.level != Level::Ordinal => Err(SyntaxError::new(
            located.span.clone(),
            format!(
                "Only == and != operators may be used with {} field {}.",
                symbol.level, symbol.name
            ),
        )),
        [(_, Value::Set(_))] => {
            error("Only == and != operators may be used with value sets.".into())
        }
        [(_, Value::Number(Constant { mask: Some(_), .. }))] => error(
            "Only == and != operators may be used with masked constants.  Consider using \
             subfields instead (e.g. \
             eth.src[0..15] > 0x1111 in place of eth.src > 00:00:00:00:11:11/00:00:00:00:ff:ff)."
                .into(),
        ),
        _ => Ok(()),
    }
}

/// Like OVN, cuts off bits of a constant that fit the symbol but not the selected bits of it.
pub(super) fn number_test(field: FieldRef, relation: Relation, number: &Constant) -> NumberTest {
    let ones = flow::low_bits(field.width());
    let mask = match (field.symbol().meaning, number.mask) {
        (SymbolMeaning::Predicate(_), _) | (_, None) => ones,
        (_, Some(mask)) => mask & ones,
    };
    let (value, mask) = (number.value << field.first(), mask << field.first());
    NumberTest::new(field.id(), relation, value, mask)
}
