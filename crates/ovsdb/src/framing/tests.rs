use super::*;

const A: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const B: &str = "bbbbbbbb-0000-4000-8000-000000000002";

/// A piece as text.
#[derive(Clone, PartialEq, Debug)]
enum Found {
    Row { head: String, table: String, uuid: String, value: String },
    Message(String),
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Splits a stream that arrives in parts of these sizes, the last one repeated.
fn split(stream: &[u8], sizes: &[usize], limits: Limits) -> Result<Vec<Found>, FramingError> {
    let mut framer = Framer::new(limits);
    let mut found = Vec::new();
    let (mut rest, mut sizes) = (stream, sizes.iter());
    let mut size = 1;
    while !rest.is_empty() {
        size = sizes.next().copied().unwrap_or(size);
        let (mut part, later) = rest.split_at(size.min(rest.len()));
        rest = later;
        while let Some(piece) = framer.next(&mut part)? {
            found.push(match piece {
                Piece::Message => Found::Message(text(framer.message())),
                Piece::Row => {
                    let row = framer.row();
                    Found::Row {
                        head: text(&framer.head()),
                        table: text(row.table),
                        uuid: row.uuid.to_string(),
                        value: text(row.value),
                    }
                }
            });
        }
    }
    Ok(found)
}

fn whole(stream: &str) -> Vec<Found> {
    let all = split(stream.as_bytes(), &[stream.len()], Limits::default()).unwrap();
    let bytes = split(stream.as_bytes(), &[1], Limits::default()).unwrap();
    assert_eq!(all, bytes, "the same in parts of one byte");
    all
}

fn row(head: &str, table: &str, uuid: &str, value: &str) -> Found {
    let [head, table, uuid, value] = [head, table, uuid, value].map(str::to_owned);
    Found::Row { head, table, uuid, value }
}

#[test]
fn messages_are_split_where_their_last_bracket_is() {
    let one = r#"{"id":1,"result":["}{\"\\"],"error":null}"#;
    let two = "{}";
    let found = whole(&format!(" {one}\n{two} {one}"));
    let message = |text: &str| Found::Message(text.to_owned());
    assert_eq!(found, [message(one), message(two), message(one)]);
}

#[test]
fn rows_come_on_their_own_when_the_message_is_a_table_update() {
    let rows = format!(r#"{{"{A}":{{"new":{{"x":"}}\""}}}} , "{B}" : {{}} }}"#);
    for (before, after) in [
        (r#"{"id":1,"result":{"T":"#, r#","U":{}},"error":null}"#),
        (r#"{"id":1,"result":[true,"t",{"T":"#, r#","U":{}}],"error":null}"#),
        (r#"{"id":null,"method":"update2","params":["m",{"T":"#, r#","U":{}}]}"#),
        (r#"{"id":null,"method":"update3","params":["m","t",{"T":"#, r#","U":{}}]}"#),
    ] {
        let found = whole(&format!("{before}{rows}{after}"));
        let Found::Row { head, .. } = &found[0] else { panic!("{found:?}") };
        assert!(head.starts_with(before), "{head}");
        assert!(serde_json::from_str::<serde_json::Value>(head).is_ok(), "{head}");
        assert_eq!(
            found,
            [
                row(head, "T", A, r#"{"new":{"x":"}\""}}"#),
                row(head, "T", B, "{}"),
                Found::Message(format!("{before}{{}}{after}")),
            ]
        );
    }
}

#[test]
fn rows_stay_in_the_message_when_their_monitor_is_unknown_yet() {
    for message in [
        format!(r#"{{"result":{{"T":{{"{A}":{{}}}}}},"id":1}}"#),
        format!(r#"{{"params":["m",{{"T":{{"{A}":{{}}}}}}],"method":"update2"}}"#),
        format!(r#"{{"id":1,"result":[{{"T":{{"{A}":{{}}}}}}]}}"#),
        format!(r#"{{"id":1,"result":{{"tables":{{"Bridge":{{"{A}":{{}}}}}}}}}}"#),
        format!(r#"{{"id":1,"result":{{"tables":{{"abc":{{"{A}":{{}}}}}}}}}}"#),
        r#"{"id":1,"result":{"tables":{"a-b\"":{},"":{}}}}"#.to_owned(),
        r#"{"id":1,"result":{"tables":{ 7}}}"#.replace(' ', ""),
    ] {
        assert_eq!(whole(&message), [Found::Message(message.clone())]);
    }
}

#[test]
fn stream_is_refused_with_the_limit_when_it_exceeds_one() {
    let limits = Limits { message_bytes: 1024, update_bytes: 2048, depth: 12, ..Limits::default() };
    let refused = |stream: &str| split(stream.as_bytes(), &[100], limits).unwrap_err().to_string();
    let long = "x".repeat(2000);
    let row = format!("\"{A}\":{{\"new\":{{\"x\":\"{}\"}}}}", "x".repeat(900));
    let update = r#"{"id":1,"result":{"T":{"#;
    assert!(refused(&format!("{{\"id\":\"{long}\"}}")).contains("limit message_bytes"));
    assert!(refused(&format!("{{{}", " ".repeat(2000))).contains("limit message_bytes"));
    assert!(refused(&format!("{update}\"{A}\":{{\"{long}")).contains("limit message_bytes"));
    assert!(refused(&format!("{update}{row},{row},{row}}}")).contains("limit update_bytes"));
    assert!(refused(&format!("{{\"id\":{}", "[".repeat(12))).contains("limit depth"));
    assert!(refused(&format!("{update}\"{A}\":{}", "{\"a\":".repeat(12))).contains("limit depth"));
    assert!(refused("[]").contains("expected a JSON object, not the byte 0x5b"));
    assert!(refused("{]").contains("closes nothing"));
    assert!(refused("{\"a\":[}").contains("closes nothing"));
    assert!(refused(&format!("{update}\"{A}\":{{}}]")).contains("expected `,` or `}`"));
    assert!(refused(&format!("{update}\"{A}\":7")).contains("expected `{` of a row"));
    assert!(refused(&format!("{update}\"{A}\":{{}},\"T\"")).contains("expected a UUID"));
    assert!(refused(&format!("{update}\"{A}\"7")).contains("expected `:`"));
}
