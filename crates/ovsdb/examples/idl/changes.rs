//! Executes changes of the table `simple`, such as `verify 0 b, set 0 b 1, insert 2`.

use crate::{Failure, Idl};
use ovsdb::{
    Clause, Datum, Event, Function, Mutation, Row, RowValues, TransactOutcome, Transaction, Uuid,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A row of the table `simple`, with changes that are not committed.
#[derive(Default)]
struct Draft {
    /// The row in the replica; `None` if it is new.
    row: Option<Arc<Row>>,
    /// The UUID chosen for a new row.
    uuid: Option<Uuid>,
    number: i64,
    values: BTreeMap<String, Datum>,
    verified: Vec<String>,
    is_deleted: bool,
    is_incremented: bool,
}

/// Executes changes in one transaction, and prints its status. False if nothing was sent.
pub fn execute(idl: &mut Idl, commands: &str) -> Result<bool, Failure> {
    let mut drafts = drafts(idl);
    let mut extra = Transaction::new();
    for command in commands.split(',') {
        let words: Vec<_> = command.split(' ').filter(|word| !word.is_empty()).collect();
        let find = |drafts: &mut Vec<Draft>, number: &str| {
            let number: i64 = number.parse().unwrap_or_default();
            let found = drafts.iter().position(|draft| draft.number == number && !draft.is_deleted);
            found.ok_or_else(|| Failure::from(format!("`{command}`: no row has i={number}")))
        };
        match words.as_slice() {
            ["set", number, column, value] => {
                let at = find(&mut drafts, number)?;
                drafts[at].values.insert((*column).to_owned(), parse(column, value)?);
            }
            ["insert", number] => {
                let number = number.parse()?;
                let values = BTreeMap::from([("i".to_owned(), Datum::from(number))]);
                drafts.push(Draft { number, values, ..Draft::default() });
            }
            ["insert_no_columns_changed"] => drafts.push(Draft::default()),
            ["insert_uuid", uuid, number] => {
                let number = number.parse()?;
                let values = BTreeMap::from([("i".to_owned(), Datum::from(number))]);
                let uuid = Some(uuid.parse()?);
                drafts.push(Draft { number, values, uuid, ..Draft::default() });
            }
            ["insert_uuid_uref", three, four] => {
                let four: Uuid = four.parse()?;
                let row = RowValues::new().set("uref", vec![four]);
                extra = extra.insert_with_uuid(four, "simple4", RowValues::new()).insert_with_uuid(
                    three.parse()?,
                    "simple3",
                    row,
                );
            }
            ["delete", number] => {
                let at = find(&mut drafts, number)?;
                drafts[at].is_deleted = true;
            }
            ["verify", number, column] => {
                let at = find(&mut drafts, number)?;
                drafts[at].verified.push((*column).to_owned());
            }
            ["increment", number] => {
                let at = find(&mut drafts, number)?;
                drafts[at].is_incremented = true;
            }
            ["abort"] => {
                idl.say("commit, status=aborted");
                return Ok(true);
            }
            ["destroy"] => {
                idl.say("destroy");
                return Ok(true);
            }
            _ => return Err(format!("`{command}` is no change").into()),
        }
    }
    commit(idl, &drafts, extra)
}

/// The rows of the replica.
fn drafts(idl: &Idl) -> Vec<Draft> {
    let table = idl.client.session().replica().table("simple");
    let mut drafts: Vec<_> = table
        .into_iter()
        .flat_map(|table| table.rows())
        .map(|row| Draft {
            row: Some(Arc::clone(row)),
            number: row.value("i").unwrap_or_default(),
            ..Draft::default()
        })
        .collect();
    drafts.sort_by_key(|draft| draft.row.as_ref().map(|row| row.uuid()));
    drafts
}

fn parse(column: &str, text: &str) -> Result<Datum, Failure> {
    Ok(match column {
        "b" => Datum::from(text.parse::<i64>()? != 0),
        "s" => Datum::from(text),
        "u" => Datum::from(text.parse::<Uuid>()?),
        "r" => Datum::from(text.parse::<f64>()?),
        _ => return Err(format!("the column {column} is not known").into()),
    })
}

/// Builds the transaction. Only changed columns are written.
fn build(drafts: &[Draft], mut transaction: Transaction) -> (Transaction, Option<usize>) {
    let row_values = |values: &BTreeMap<String, Datum>| {
        values.iter().fold(RowValues::new(), |row, (name, value)| row.set(name, value.clone()))
    };
    let mut incremented = None;
    for draft in drafts {
        let Some(row) = &draft.row else {
            if draft.is_deleted {
                continue;
            }
            let values = row_values(&draft.values);
            transaction = match draft.uuid {
                Some(uuid) => transaction.insert_with_uuid(uuid, "simple", values),
                None => transaction.insert("simple", values),
            };
            continue;
        };
        let own = [Clause::new("_uuid", Function::Equals, row.uuid())];
        let old = |name: &str| row.get(name).cloned().unwrap_or(Datum::empty_set());
        if !draft.verified.is_empty() {
            let verified = draft.verified.iter();
            let values = verified.fold(RowValues::new(), |row, name| row.set(name, old(name)));
            transaction = transaction.wait_for_row("simple", row.uuid(), &values);
        }
        if draft.is_deleted {
            transaction = transaction.delete("simple", &own);
            continue;
        }
        let mut values = draft.values.clone();
        values.retain(|name, value| old(name) != *value);
        if !values.is_empty() {
            transaction = transaction.update("simple", &own, row_values(&values));
        }
        if draft.is_incremented {
            transaction = transaction.mutate("simple", &own, &[Mutation::add("i", 1)]);
            incremented = Some(transaction.len());
            transaction = transaction.select("simple", &own, &["i"]);
        }
    }
    (transaction, incremented)
}

/// Commits, and prints the status in the words of `test-ovsdb`.
fn commit(idl: &mut Idl, drafts: &[Draft], extra: Transaction) -> Result<bool, Failure> {
    let (transaction, incremented) = build(drafts, extra);
    let changes_something =
        drafts.iter().any(|draft| !draft.verified.is_empty()) || !transaction.is_empty();
    if !changes_something {
        idl.say("commit, status=unchanged");
        return Ok(true);
    }
    idl.until(|idl| idl.client.session().is_ready())?;
    let wanted = idl.client.session_mut().transact(transaction)?;
    let outcome = loop {
        match idl.next_event() {
            Some(Event::Transacted { id, outcome }) if id == wanted => break outcome,
            _ if std::time::Instant::now() > idl.deadline => return Err("timed out".into()),
            _ => {}
        }
    };
    let mut status = "success".to_owned();
    match outcome {
        TransactOutcome::Committed(results) => {
            let row = incremented.and_then(|at| results.get(at)?.rows.first().cloned());
            let value = row.as_ref().and_then(|row| row.get("i")).and_then(Value::as_i64);
            if let Some(value) = value {
                status = format!("success, increment={value}");
            }
        }
        TransactOutcome::Failed(error) if error.error == "timed out" => {
            status = "try again".to_owned();
        }
        TransactOutcome::Failed(error) => {
            eprintln!("{error}");
            status = "error".to_owned();
        }
        TransactOutcome::Lost | TransactOutcome::NotSent => status = "try again".to_owned(),
    }
    idl.say(&format!("commit, status={status}"));
    Ok(status != "error")
}
