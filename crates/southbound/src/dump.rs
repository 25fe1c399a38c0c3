//! Parses the text to tables, and tables to rows.

use super::Southbound;
use super::cell::Cell;
use super::error::{RowName, SouthboundError};
use super::rows::{
    AddressSet, Chassis, DatapathBinding, FdbEntry, LoadBalancer, LogicalDpGroup, LogicalFlow,
    MacBinding, MulticastGroup, PortBinding, PortGroup, StaticMacBinding,
};
use super::table::{Cells, Row};
use ovsdb::Uuid;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

/// A table, not parsed yet. The headings follow the data, so the data is parsed in a second pass.
#[derive(Deserialize)]
struct Table<'t> {
    #[serde(borrow, default)]
    caption: Option<Cow<'t, str>>,
    #[serde(borrow)]
    data: &'t RawValue,
    #[serde(borrow)]
    headings: Vec<Cow<'t, str>>,
}

impl Southbound {
    /// Parses the output of `ovsdb-client dump --format=json` or `ovn-sbctl --format=json`. The
    /// tables may be in any order, and a table may occur several times.
    ///
    /// # Errors
    /// The first error of the text.
    pub fn parse(text: &str) -> Result<Self, SouthboundError> {
        let mut this = Self::default();
        let mut is_empty = true;
        for table in serde_json::Deserializer::from_str(text).into_iter() {
            let table: Table<'_> =
                table.map_err(|error| SouthboundError::NotADump(error.to_string()))?;
            is_empty &= !this.read_table(&table)?;
        }
        if is_empty { Err(SouthboundError::NoTable) } else { Ok(this) }
    }

    /// Parses a table. False for an unknown table.
    fn read_table(&mut self, table: &Table<'_>) -> Result<bool, SouthboundError> {
        let Some(name) = table.name() else { return Ok(false) };
        match name {
            DatapathBinding::TABLE => table.read_into(&mut self.datapaths)?,
            PortBinding::TABLE => table.read_into(&mut self.ports)?,
            LogicalFlow::TABLE => table.read_into(&mut self.flows)?,
            LogicalDpGroup::TABLE => table.read_into(&mut self.dp_groups)?,
            LoadBalancer::TABLE => table.read_into(&mut self.load_balancers)?,
            MulticastGroup::TABLE => table.read_into(&mut self.multicast_groups)?,
            AddressSet::TABLE => table.read_into(&mut self.address_sets)?,
            PortGroup::TABLE => table.read_into(&mut self.port_groups)?,
            MacBinding::TABLE => table.read_into(&mut self.mac_bindings)?,
            StaticMacBinding::TABLE => table.read_into(&mut self.static_mac_bindings)?,
            FdbEntry::TABLE => table.read_into(&mut self.fdb)?,
            Chassis::TABLE => table.read_into(&mut self.chassis)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Table<'_> {
    /// The name of the table, from the caption `NAME table` or guessed from the columns.
    fn name(&self) -> Option<&str> {
        match &self.caption {
            Some(caption) => Some(caption.strip_suffix(" table").unwrap_or(caption)),
            None => self.guess(),
        }
    }

    /// The known table that has these columns. A later OVN may have more columns, and ovn-sbctl may
    /// print only some.
    fn guess(&self) -> Option<&'static str> {
        let all = [
            self.likeness::<DatapathBinding>(),
            self.likeness::<PortBinding>(),
            self.likeness::<LogicalFlow>(),
            self.likeness::<LogicalDpGroup>(),
            self.likeness::<LoadBalancer>(),
            self.likeness::<MulticastGroup>(),
            self.likeness::<AddressSet>(),
            self.likeness::<PortGroup>(),
            self.likeness::<MacBinding>(),
            self.likeness::<StaticMacBinding>(),
            self.likeness::<FdbEntry>(),
            self.likeness::<Chassis>(),
        ];
        let complete = all
            .iter()
            .filter(|like| like.lacks_nothing && like.unknown_headings * 2 < self.headings.len());
        if let Some(best) = complete.min_by_key(|like| like.unknown_headings) {
            return Some(best.table);
        }
        // The table is known, but lacks a required column: parsing it will report which.
        let mut parts = all.iter().filter(|like| like.unknown_headings == 0);
        parts.next().filter(|_| parts.next().is_none()).map(|like| like.table)
    }

    fn likeness<R: Row>(&self) -> TableSimilarity {
        let has = |name: &str| self.headings.iter().any(|heading| heading == name);
        // Tables with few columns, such as address sets and groups, are only recognized if all
        // columns are present.
        let is_small = R::COLUMNS.len() <= 3;
        let mut needed = R::COLUMNS.iter().filter(|column| column.required || is_small);
        let is_unknown = |heading: &&Cow<'_, str>| {
            !R::COLUMNS.iter().any(|column| column.name == **heading)
                && !R::OTHERS.contains(&heading.as_ref())
        };
        TableSimilarity {
            table: R::TABLE,
            lacks_nothing: needed.all(|column| has(column.name)),
            unknown_headings: self.headings.iter().filter(is_unknown).count(),
        }
    }

    /// Adds the rows to `rows`, except those that it already has.
    fn read_into<R: Row>(&self, rows: &mut Vec<R>) -> Result<(), SouthboundError> {
        for column in R::COLUMNS.iter().filter(|column| column.required) {
            if !self.headings.iter().any(|heading| heading == column.name) {
                return Err(SouthboundError::NoColumn { table: R::TABLE, column: column.name });
            }
        }
        let slots: Vec<Option<usize>> = self
            .headings
            .iter()
            .map(|heading| R::COLUMNS.iter().position(|column| column.name == heading))
            .collect();
        let known: HashSet<Uuid> = rows.iter().map(Row::uuid).collect();
        let mut reader = Reader { slots: &slots, rows, known: &known, failure: None };
        let read = reader.deserialize(&mut serde_json::Deserializer::from_str(self.data.get()));
        match (reader.failure, read) {
            (Some(failure), _) => Err(failure),
            (None, Err(error)) => Err(SouthboundError::NotADump(format!("{}: {error}", R::TABLE))),
            (None, Ok(())) => Ok(()),
        }
    }
}

/// How well a table fits a known one.
struct TableSimilarity {
    table: &'static str,
    /// True if the table has all required columns.
    lacks_nothing: bool,
    /// The number of columns that the known table lacks.
    unknown_headings: usize,
}

/// Parses the rows of a table.
struct Reader<'r, R> {
    /// For each heading, the index of its cell in [`Row::COLUMNS`], if it is used.
    slots: &'r [Option<usize>],
    rows: &'r mut Vec<R>,
    /// Rows that are known already.
    known: &'r HashSet<Uuid>,
    /// The error that stopped the parser.
    failure: Option<SouthboundError>,
}

impl<'de, R: Row> DeserializeSeed<'de> for &mut Reader<'_, R> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, R: Row> Visitor<'de> for &mut Reader<'_, R> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut cells = vec![Cell::ABSENT; R::COLUMNS.len()];
        let mut number = 0;
        while let Some(fits) =
            list.next_element_seed(RowSeed { slots: self.slots, cells: &mut cells })?
        {
            number += 1;
            let row = match cells.first() {
                Some(&Cell::Uuid(uuid)) => RowName::Uuid(uuid),
                _ => RowName::Number(number),
            };
            let columns = self.slots.len();
            let read = if fits {
                let (table, columns) = (R::TABLE, R::COLUMNS);
                R::read(&mut Cells { table, columns, cells: &cells, row, at: 0 })
            } else {
                Err(SouthboundError::Ragged { table: R::TABLE, row, columns })
            };
            match read {
                Ok(row) if self.known.contains(&row.uuid()) => {}
                Ok(row) => self.rows.push(row),
                Err(failure) => {
                    self.failure = Some(failure);
                    return Err(A::Error::custom("a row is malformed"));
                }
            }
        }
        Ok(())
    }
}

/// Parses the cells of a row into their slots. False if there are too few or too many.
struct RowSeed<'r, 't> {
    slots: &'r [Option<usize>],
    cells: &'r mut [Cell<'t>],
}

impl<'de> DeserializeSeed<'de> for RowSeed<'_, 'de> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for RowSeed<'_, 'de> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of cells")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        let mut fits = true;
        for slot in self.slots {
            fits &= match slot.and_then(|slot| self.cells.get_mut(slot)) {
                Some(place) => match list.next_element()? {
                    Some(cell) => {
                        *place = cell;
                        true
                    }
                    None => false,
                },
                None => list.next_element::<IgnoredAny>()?.is_some(),
            };
        }
        while list.next_element::<IgnoredAny>()?.is_some() {
            fits = false;
        }
        Ok(fits)
    }
}
