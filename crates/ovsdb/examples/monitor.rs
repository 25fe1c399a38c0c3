//! Prints every change of a database, like `ovsdb-client monitor`.
//!
//! ```text
//! cargo run -p ovsdb --example monitor -- unix:/run/openvswitch/db.sock Open_vSwitch Bridge name
//! cargo run -p ovsdb --example monitor -- \
//!     --tls KEY CERTIFICATE CA-CERTIFICATE ssl:127.0.0.1:6642 OVN_Southbound
//! ```
//!
//! Without a table, it first asks for the schema and then monitors all tables. Without a column, it
//! monitors all columns.
#![forbid(unsafe_code)]

use ovsdb::io::{Client, TlsFiles};
use ovsdb::{Config, Event, Remote, Reply, RowChange, Schema, TableRequest};
use std::error::Error;
use std::process::ExitCode;

const USAGE: &str = "usage: monitor [--tls KEY CERTIFICATE CA-CERTIFICATE] REMOTE[,REMOTE]... \
                     DATABASE [TABLE [COLUMN]...]";

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("monitor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: Vec<String>) -> Result<(), Box<dyn Error>> {
    let mut tls = None;
    if arguments.first().is_some_and(|argument| argument == "--tls") {
        let [_, key, certificate, ca] = arguments.get(..4).ok_or(USAGE)? else {
            return Err(USAGE.into());
        };
        tls = Some(TlsFiles {
            private_key: key.into(),
            certificate: certificate.into(),
            ca_certificate: ca.into(),
            server_name: None,
        });
        arguments.drain(..4);
    }
    let mut arguments = arguments.iter().map(String::as_str);
    let remotes = Remote::parse_list(arguments.next().ok_or(USAGE)?)?;
    let mut config = Config::new(arguments.next().ok_or(USAGE)?, remotes);
    let columns: Vec<_>;
    config.tables = match arguments.next() {
        None => all_tables(&config, tls.clone())?,
        Some(table) => {
            columns = arguments.collect();
            vec![if columns.is_empty() {
                TableRequest::all_columns(table)
            } else {
                TableRequest::with_columns(table, &columns)
            }]
        }
    };
    let mut client = Client::new(config, tls)?;
    loop {
        match client.next_event(None) {
            Some(Event::Connected { remote }) => eprintln!("{remote}: connected"),
            Some(Event::Disconnected { remote, reason }) => eprintln!("{remote}: {reason}"),
            Some(Event::Update(update)) => {
                println!("{:?}, transaction {}", update.kind, update.transaction);
                update.changes.iter().for_each(print);
            }
            _ => {}
        }
    }
}

/// Asks the server for its schema.
fn all_tables(config: &Config, tls: Option<TlsFiles>) -> Result<Vec<TableRequest>, Box<dyn Error>> {
    let mut client = Client::new(config.clone(), tls)?;
    loop {
        match client.next_event(None) {
            Some(Event::Connected { .. }) => {
                client.session_mut().get_schema(&config.database)?;
            }
            Some(Event::Replied { reply: Reply::Result(schema), .. }) => {
                let schema = Schema::from_json(&schema)?;
                return Ok(schema
                    .tables
                    .keys()
                    .map(|name| TableRequest::all_columns(name))
                    .collect());
            }
            Some(Event::Replied { reply: Reply::Error(error), .. }) => {
                return Err(format!("get_schema: {error}").into());
            }
            Some(Event::Disconnected { remote, reason }) => eprintln!("{remote}: {reason}"),
            _ => {}
        }
    }
}

fn print(change: &RowChange) {
    match (&change.old, &change.new) {
        (None, Some(new)) => println!("insert {new:?}"),
        (Some(old), None) => println!("delete {} {}", old.table(), old.uuid()),
        (Some(old), Some(new)) => {
            println!("modify {} {}", new.table(), new.uuid());
            for column in new.changed_columns(old) {
                let value = |row: &ovsdb::Row| row.get(column).map(ovsdb::Datum::to_json);
                let text = |value: Option<serde_json::Value>| value.unwrap_or_default().to_string();
                println!("    {column}: {} -> {}", text(value(old)), text(value(new)));
            }
        }
        (None, None) => {}
    }
}
