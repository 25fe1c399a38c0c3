//! Reading TOML tables key by key, so that every mistake is found in one pass and each names its place.
//!
//! Why not `serde`'s derive: a derived reader stops at the first mistake. Here a [`Schema`] lists the keys of a
//! table once, each with an example; unknown keys, missing keys and wrong types are reported from that list.

use crate::errors::Report;
use crate::suggest;
use std::ops::RangeInclusive;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One key that a table can have.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// How to write it, shown when it is missing or has the wrong type.
    pub(crate) example: &'static str,
}

pub(crate) const fn key(name: &'static str, example: &'static str) -> Key {
    Key { name, example }
}

/// The keys of one kind of table.
pub(crate) struct Schema {
    /// The table as messages name it.
    pub(crate) name: &'static str,
    pub(crate) keys: &'static [Key],
}

/// A value and the byte offset at which it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sited<T> {
    pub(crate) value: T,
    pub(crate) at: usize,
}

/// A table that is being read.
pub(crate) struct Section<'a, 't> {
    schema: &'static Schema,
    /// Where missing keys are reported.
    pub(crate) at: usize,
    table: &'a DeTable<'t>,
    /// Keys for which an unknown one was probably meant.
    misspelt: Vec<&'static str>,
}

impl<'a, 't> Section<'a, 't> {
    /// Reports the keys of `table` that `schema` does not have.
    pub(crate) fn open(
        report: &mut Report<'_>,
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

    /// True when an unknown key was probably meant to be this one, which has been said: then nobody should be
    /// told that it is missing.
    pub(crate) fn is_misspelt(&self, name: &str) -> bool {
        self.misspelt.contains(&name)
    }

    /// The value of a key, if it is there. `name` is one of the schema's.
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

    /// As [`Section::get`]; reports the key as missing when it is not there.
    pub(crate) fn require(&self, report: &mut Report<'_>, name: &str) -> Option<Field<'a, 't>> {
        let field = self.get(name);
        let key = self.schema.keys.iter().find(|key| key.name == name);
        if let (None, Some(key), false) = (field, key, self.is_misspelt(name)) {
            let (place, example) = (self.schema.name, key.example);
            report.error(self.at, format!("{place} has no `{name}`; add one, such as {example}"));
        }
        field
    }
}

/// The value of a key, or an element of an array that is.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a, 't> {
    name: &'a str,
    example: &'static str,
    is_element: bool,
    /// Where the key stands.
    pub(crate) key_at: usize,
    /// Where the value stands.
    pub(crate) at: usize,
    value: &'a DeValue<'t>,
}

impl<'a, 't> Field<'a, 't> {
    /// The same field with another example of how to write it.
    pub(crate) fn with_example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    /// Notes a problem with the value.
    pub(crate) fn error(&self, report: &mut Report<'_>, message: impl Into<String>) {
        report.error(self.at, message);
    }

    pub(crate) fn sited<T>(&self, value: T) -> Sited<T> {
        Sited { value, at: self.at }
    }

    /// Notes that the value is not what it should be; `expected` comes after "write".
    pub(crate) fn wrong_type(&self, report: &mut Report<'_>, expected: &str) {
        let Self { name, example, .. } = self;
        let element = if self.is_element { "an element of " } else { "" };
        let found = with_article(self.value.type_str());
        self.error(
            report,
            format!("{element}`{name}` is {found}; write {expected}, such as {example}"),
        );
    }

    pub(crate) fn string(&self, report: &mut Report<'_>) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.wrong_type(report, "a string");
        }
        text
    }

    pub(crate) fn is_string(&self) -> bool {
        self.value.is_str()
    }

    pub(crate) fn boolean(&self, report: &mut Report<'_>) -> Option<bool> {
        self.boolean_or(report, "true or false")
    }

    /// As [`Field::boolean`], of a key that can be something else, too; `expected` lists all that it can be.
    pub(crate) fn boolean_or(&self, report: &mut Report<'_>, expected: &str) -> Option<bool> {
        let value = self.value.as_bool();
        if value.is_none() {
            self.wrong_type(report, expected);
        }
        value
    }

    /// The value if it is an integer in `range`; `rule` says what is allowed when it is not.
    pub(crate) fn integer<N>(
        &self,
        report: &mut Report<'_>,
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

    /// The elements if it is an array; messages call each an element of the key.
    pub(crate) fn array(
        &self,
        report: &mut Report<'_>,
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

    /// The entries of a table whose keys are names that the user has chosen.
    pub(crate) fn named_entries(
        &self,
        report: &mut Report<'_>,
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
        report: &mut Report<'_>,
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
        report: &mut Report<'_>,
        schema: &'static Schema,
    ) -> Vec<Section<'a, 't>> {
        if self.value.is_table() {
            let (name, place) = (self.name, schema.name);
            self.error(
                report,
                format!("`{name}` is one table; write {place}, for there can be several"),
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
