use super::*;
use std::fs;

const SCHEMA: &str = r#"{
    "name": "db", "version": "1.0.0", "tables": {"T": {"isRoot": true, "maxRows": 1,
    "indexes": [["a"]], "columns": {
        "a": {"type": "string", "mutable": false},
        "n": {"type": {"key": {"type": "integer", "minInteger": 1, "maxInteger": 9}, "min": 0}},
        "m": {"type": {"key": "string", "value": {"type": "uuid", "refTable": "T",
              "refType": "weak"}, "min": 0, "max": "unlimited"}, "ephemeral": true},
        "e": {"type": {"key": {"type": "string", "enum": ["set", ["x", "y"]]}}},
        "l": {"type": {"key": {"type": "string", "maxLength": 2}}},
        "r": {"type": {"key": {"type": "real", "minReal": 0.5}}},
        "s": {"type": {"key": "integer", "max": 3}}}}}}"#;

fn schema() -> Schema {
    Schema::from_text(SCHEMA.as_bytes()).unwrap()
}

#[test]
fn schema_has_types_and_constraints_when_it_is_parsed() {
    let schema = schema();
    let table = &schema.tables["T"];
    assert!(table.is_root && table.max_rows == Some(1) && table.indexes == [["a".into()]]);
    assert!(!table.columns["a"].is_mutable && table.columns["m"].is_ephemeral);
    let m = &table.columns["m"].ty;
    let reference = m.value.as_ref().unwrap().reference.as_ref().unwrap();
    assert!(&*reference.table == "T" && !reference.is_strong);
    assert_eq!(m.to_string(), "a map of strings to uuids");
    assert_eq!(table.columns["n"].ty.to_string(), "an integer or nothing");
    assert_eq!(table.columns["s"].ty.to_string(), "a set of 1 to 3 integers");
    assert_eq!(table.columns["s"].ty.default_datum(), Datum::set([Atom::Integer(0)]));
    assert_eq!(m.default_datum(), Datum::empty_map());
}

#[test]
fn value_is_refused_when_it_breaks_a_constraint() {
    let schema = schema();
    let check = |column: &str, value: Datum| {
        let column = schema.column("T", column).unwrap();
        column.ty.check(&value).map_err(|error| error.to_string())
    };
    assert_eq!(check("n", Datum::from(Some(9))), Ok(()));
    assert_eq!(check("n", Datum::empty_set()), Ok(()));
    assert_eq!(check("n", Some(10).into()).unwrap_err(), "expected an integer from 1 to 9, not 10");
    assert_eq!(
        check("n", vec![1, 2].into()).unwrap_err(),
        "expected an integer or nothing, not a set of 2"
    );
    assert_eq!(check("e", "z".into()).unwrap_err(), "expected one of \"x\", \"y\", not \"z\"");
    assert_eq!(check("l", "äö".into()), Ok(()));
    let error = check("l", "abc".into()).unwrap_err();
    assert_eq!(error, "expected a string of 0 to 2 characters, not \"abc\"");
    assert!(check("r", 0.4.into()).is_err() && check("r", 0.5.into()).is_ok());
    assert_eq!(check("a", true.into()).unwrap_err(), "expected a string, not true");
    assert_eq!(check("m", Datum::empty_map()), Ok(()));
    assert!(check("m", Datum::empty_set()).is_err());
}

#[test]
fn schema_is_refused_with_the_place_when_it_is_wrong() {
    for (from, to, expected) in [
        (r#""name": "db""#, r#""name": "d b""#, "name: a name consists of"),
        (r#""mutable": false"#, r#""mutable": 0"#, "tables.T.columns.a.mutable: expected true"),
        (r#""minInteger": 1"#, r#""minInteger": "1""#, "tables.T.columns.n.type.key.minInteger"),
        (r#""weak""#, r#""soft""#, "tables.T.columns.m.type.value.refType: expected \"strong\""),
        (r#"[["a"]]"#, r#"[["b"]]"#, "tables.T.indexes: expected names of columns"),
        (r#""max": 3"#, r#""max": 0"#, "tables.T.columns.s.type.max: expected an integer from 1"),
        (r#"["x", "y"]"#, r#"["x", 1]"#, "tables.T.columns.e.type.key.enum: expected values"),
        (r#"{"type": "string", "mu"#, r#"{"type": "text", "mu"#, "a.type: `text` is no atomic"),
        (r#""columns": {"#, r#""colums": {"#, "tables.T: `columns` is missing"),
    ] {
        let text = SCHEMA.replace(from, to);
        assert_ne!(text, SCHEMA, "{from}");
        let error = Schema::from_text(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(Schema::from_text(b"{").unwrap_err().to_string().contains("not JSON"));
}

#[test]
fn debian_schemas_are_accepted() {
    let mut found = 0;
    for (file, table, column, ty) in [
        ("openvswitch/vswitch.ovsschema", "Interface", "ofport", "an integer or nothing"),
        ("ovn/ovn-sb.ovsschema", "Port_Binding", "tunnel_key", "an integer"),
        ("ovn/ovn-nb.ovsschema", "ACL", "options", "a map of strings to strings"),
    ] {
        let Ok(text) = fs::read(format!("/usr/share/{file}")) else { continue };
        let schema = Schema::from_text(&text).unwrap();
        assert_eq!(schema.column(table, column).unwrap().ty.to_string(), ty);
        found += 1;
    }
    if found == 0 {
        testkit::report::skip("debian_schemas_are_accepted", "needs the schemas of openvswitch");
    }
}
