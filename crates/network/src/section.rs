//! Reads TOML tables key by key, so that one pass finds all errors, each with its position.
//!
//! serde's derive stops at the first error. Here a [`Schema`] lists the keys of a table once, each
//! with an example; unknown keys, missing keys and wrong types are reported from that list.

use crate::errors::ProblemCollector;
use crate::suggest;
use std::ops::RangeInclusive;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A key that a table can have.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// An example, shown when the key is missing or has the wrong type.
    pub(crate) example: &'static str,
}

pub(crate) const fn key(name: &'static str, example: &'static str) -> Key {
    Key { name, example }
}

/// The keys of one kind of table.
pub(crate) struct Schema {
    /// The name of the table in messages.
    pub(crate) name: &'static str,
    pub(crate) keys: &'static [Key],
}

/// A value and its byte offset in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) at: usize,
}

/// A table that is being read.
pub(crate) struct Section<'a, 't> {
    schema: &'static Schema,
    /// The position at which missing keys are reported.
    pub(crate) at: usize,
    table: &'a DeTable<'t>,
    /// Keys that an unknown key was probably meant to be.
    misspelt: Vec<&'static str>,
}

impl<'a, 't> Section<'a, 't> {
    /// Reports the keys of `table` that are not in `schema`.
    pub(crate) fn open(
        report: &mut ProblemCollector<'_>,
        schema: &'static Schema,
        at: usize,
        table: &'a DeTable<'t>,
    ) -> Self {
        let known = schema.keys.iter().map(|key| key.name);
        let mut misspelt = Vec::new();
        for found in table.keys() {
            let name = found.get_ref();
            if !schema.keys.iter().any(|key| key.name == name) {
                misspelt.extend(suggest::nearest(name, known.clone()));
                let hint = suggest::hint(name, known.clone(), "keys");
                let place = schema.name;
                report.error(found.span().start, format!("unknown key `{name}` in {place}{hint}"));
            }
        }
        Self { schema, at, table, misspelt }
    }

    /// True when an unknown key was probably meant to be this one. That has been reported, so its
    /// absence need not be.
    pub(crate) fn is_misspelt(&self, name: &str) -> bool {
        self.misspelt.contains(&name)
    }

    /// The value of a key of the schema, if present.
    pub(crate) fn get(&self, name: &str) -> Option<Field<'a, 't>> {
        let key = self.schema.keys.iter().find(|key| key.name == name)?;
        let (found, node) = self.table.get_key_value(name)?;
        Some(Field {
            name: key.name,
            example: key.example,
            is_element: false,
            key_at: found.span().start,
            at: node.span().start,
            value: node.get_ref(),
        })
    }

    /// Like [`Section::get`], but reports an absent key.
    pub(crate) fn require(
        &self,
        report: &mut ProblemCollector<'_>,
        name: &str,
    ) -> Option<Field<'a, 't>> {
        let field = self.get(name);
        let key = self.schema.keys.iter().find(|key| key.name == name);
        if let (None, Some(key), false) = (field, key, self.is_misspelt(name)) {
            let (place, example) = (self.schema.name, key.example);
            report.error(self.at, format!("{place} has no `{name}`; add one, such as {example}"));
        }
        field
    }
}

/// The value of a key, or an element of its array.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a, 't> {
    name: &'a str,
    example: &'static str,
    is_element: bool,
    /// The offset of the key.
    pub(crate) key_at: usize,
    /// The offset of the value.
    pub(crate) at: usize,
    value: &'a DeValue<'t>,
}

impl<'a, 't> Field<'a, 't> {
    /// Replaces the example in the messages about a field.
    pub(crate) fn with_example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    /// Reports an error in the value.
    pub(crate) fn error(&self, report: &mut ProblemCollector<'_>, message: impl Into<String>) {
        report.error(self.at, message);
    }

    pub(crate) fn located<T>(&self, value: T) -> Located<T> {
        Located { value, at: self.at }
    }

    /// Reports a value of the wrong type; `expected` follows "write".
    pub(crate) fn wrong_type(&self, report: &mut ProblemCollector<'_>, expected: &str) {
        let Self { name, example, .. } = self;
        let element = if self.is_element { "an element of " } else { "" };
        let found = with_article(self.value.type_str());
        self.error(
            report,
            format!("{element}`{name}` is {found}; write {expected}, such as {example}"),
        );
    }

    pub(crate) fn string(&self, report: &mut ProblemCollector<'_>) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.wrong_type(report, "a string");
        }
        text
    }

    pub(crate) fn is_string(&self) -> bool {
        self.value.is_str()
    }

    pub(crate) fn boolean(&self, report: &mut ProblemCollector<'_>) -> Option<bool> {
        self.boolean_or(report, "true or false")
    }

    /// Like [`Field::boolean`], for a key with alternatives; `expected` lists them all.
    pub(crate) fn boolean_or(
        &self,
        report: &mut ProblemCollector<'_>,
        expected: &str,
    ) -> Option<bool> {
        let value = self.value.as_bool();
        if value.is_none() {
            self.wrong_type(report, expected);
        }
        value
    }

    /// The value if it is an integer in `range`; `rule` says what is permitted.
    pub(crate) fn integer<N>(
        &self,
        report: &mut ProblemCollector<'_>,
        range: RangeInclusive<N>,
        rule: &str,
    ) -> Option<N>
    where
        N: TryFrom<i128> + PartialOrd,
    {
        let Some(number) = self.value.as_integer() else {
            self.wrong_type(report, "an integer");
            return None;
        };
        let value = i128::from_str_radix(number.as_str(), number.radix());
        let value = value.ok().and_then(|value| N::try_from(value).ok());
        let value = value.filter(|value| range.contains(value));
        if value.is_none() {
            let prefix = match number.radix() {
                2 => "0b",
                8 => "0o",
                16 => "0x",
                _ => "",
            };
            let name = self.name;
            self.error(report, format!("`{name}` is {prefix}{}; {rule}", number.as_str()));
        }
        value
    }

    pub(crate) fn is_integer(&self) -> bool {
        self.value.is_integer()
    }

    /// The elements if it is an array.
    pub(crate) fn array(
        &self,
        report: &mut ProblemCollector<'_>,
    ) -> Option<impl Iterator<Item = Field<'a, 't>> + use<'a, 't>> {
        let Some(array) = self.value.as_array() else {
            self.wrong_type(report, "an array");
            return None;
        };
        let whole = *self;
        Some(array.iter().map(move |node: &'a Spanned<DeValue<'t>>| Field {
            is_element: true,
            at: node.span().start,
            value: node.get_ref(),
            ..whole
        }))
    }

    pub(crate) fn is_table(&self) -> bool {
        self.value.is_table()
    }

    pub(crate) fn is_array(&self) -> bool {
        self.value.is_array()
    }

    /// The entries of a table whose keys are user-defined names.
    pub(crate) fn named_entries(
        &self,
        report: &mut ProblemCollector<'_>,
        example: &'static str,
    ) -> Option<impl Iterator<Item = (&'a str, Field<'a, 't>)> + use<'a, 't>> {
        let Some(table) = self.value.as_table() else {
            self.wrong_type(report, "a table");
            return None;
        };
        Some(table.iter().map(move |(key, node)| {
            let name: &'a str = key.get_ref();
            let (key_at, at) = (key.span().start, node.span().start);
            let value = node.get_ref();
            (name, Field { name, example, is_element: false, key_at, at, value })
        }))
    }

    pub(crate) fn table(
        &self,
        report: &mut ProblemCollector<'_>,
        schema: &'static Schema,
    ) -> Option<Section<'a, 't>> {
        let Some(table) = self.value.as_table() else {
            self.wrong_type(report, "a table");
            return None;
        };
        Some(Section::open(report, schema, self.at, table))
    }

    /// The tables of an array of tables.
    pub(crate) fn tables(
        &self,
        report: &mut ProblemCollector<'_>,
        schema: &'static Schema,
    ) -> Vec<Section<'a, 't>> {
        if self.value.is_table() {
            let (name, place) = (self.name, schema.name);
            self.error(
                report,
                format!("`{name}` is a single table; write {place}, because there can be several"),
            );
            return Vec::new();
        }
        let Some(elements) = self.array(report) else { return Vec::new() };
        elements.filter_map(|element| element.table(report, schema)).collect()
    }
}

fn with_article(noun: &str) -> String {
    let article = if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {noun}")
}
