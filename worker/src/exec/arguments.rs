//! Templates of arguments: one template, one argument, whatever is put into it.
//!
//! Owns the placeholders. No shell ever sees the outcome, so nothing needs quoting; what it guards against is a value that a
//! program would take for an option.

use serde_json::Value;

use crate::fed::lines::text;

/// One element of `args`.
#[derive(Clone, Debug, PartialEq)]
pub enum Template {
    /// Text and placeholders, which become one argument.
    One(Vec<Piece>),
    /// `{payload.list[]}`, alone: as many arguments as the list has elements.
    Each(Vec<String>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    Text(String),
    Id,
    Key,
    Attempt,
    Job,
    Directory,
    /// The payload, or what it has under these names.
    Payload(Vec<String>),
}

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum TemplateError {
    #[error("a {{ without its }} (a brace of its own is written twice)")]
    Unclosed,
    #[error(
        "there is no placeholder {{{0}}}: {{id}}, {{key}}, {{attempt}}, {{job}}, {{directory}}, {{payload}}, {{payload.FIELD}}, {{payload.LIST[]}}"
    )]
    Unknown(String),
    #[error("{{payload.LIST[]}} is an argument of its own")]
    ListInside,
}

/// What templates are filled with.
pub struct Values<'a> {
    pub id: i64,
    pub key: &'a str,
    pub attempt: u32,
    pub job: &'a str,
    pub directory: &'a str,
    pub payload: &'a Value,
}

/// Why a payload does not fit a program's arguments.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum FillError {
    #[error("the payload has no {0:?}, which the program's arguments want")]
    Missing(String),
    #[error("the payload's {0:?} is not a list")]
    NotAList(String),
    #[error("{0:?} would be taken for an option: it begins with - and the program's arguments have no -- before it")]
    Option(String),
    #[error("an argument cannot contain a NUL character")]
    Nul,
}

impl Template {
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            plain.push_str(before);
            let brace = &from[..1];
            if from[1..].starts_with(brace) {
                plain.push_str(brace);
                rest = &from[2..];
                continue;
            }
            let end = from.find('}').filter(|_| brace == "{").ok_or(TemplateError::Unclosed)?;
            let name = &from[1..end];
            rest = &from[end + 1..];
            if let Some(list) = name.strip_prefix("payload").and_then(|path| path.strip_suffix("[]")) {
                let alone = pieces.is_empty() && plain.is_empty() && rest.is_empty();
                return if alone { Ok(Template::Each(fields(list, name)?)) } else { Err(TemplateError::ListInside) };
            }
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(placeholder(name)?);
        }
        plain.push_str(rest);
        if !plain.is_empty() || pieces.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Template::One(pieces))
    }

    pub fn is_literal(&self) -> bool {
        matches!(self, Template::One(pieces) if pieces.iter().all(|piece| matches!(piece, Piece::Text(_))))
    }
}

fn placeholder(name: &str) -> Result<Piece, TemplateError> {
    Ok(match name {
        "id" => Piece::Id,
        "key" => Piece::Key,
        "attempt" => Piece::Attempt,
        "job" => Piece::Job,
        "directory" => Piece::Directory,
        other => match other.strip_prefix("payload") {
            Some(path) => Piece::Payload(fields(path, name)?),
            None => return Err(TemplateError::Unknown(name.to_owned())),
        },
    })
}

fn fields(path: &str, name: &str) -> Result<Vec<String>, TemplateError> {
    let unknown = || TemplateError::Unknown(name.to_owned());
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let names = path.strip_prefix('.').ok_or_else(unknown)?.split('.');
    names.map(|field| if field.is_empty() { Err(unknown()) } else { Ok(field.to_owned()) }).collect()
}

/// The arguments for one problem.
pub fn fill(templates: &[Template], values: &Values<'_>) -> Result<Vec<String>, FillError> {
    let mut arguments: Vec<String> = Vec::with_capacity(templates.len());
    let mut options_are_over = false;
    for template in templates {
        let filled = match template {
            Template::One(pieces) => vec![one(pieces, values)?],
            Template::Each(path) => {
                let list = at(values.payload, path)?;
                let list = list.as_array().ok_or_else(|| FillError::NotAList(path.join(".")))?;
                list.iter().map(text).collect()
            }
        };
        for argument in &filled {
            if argument.contains('\0') {
                return Err(FillError::Nul);
            }
            // Numbers are no options, however negative.
            let looks_like_one = argument.starts_with('-') && argument.parse::<f64>().is_err();
            if looks_like_one && !options_are_over && begins_with_a_value(template) {
                return Err(FillError::Option(argument.chars().take(40).collect()));
            }
        }
        options_are_over |= template.is_literal() && filled == ["--"];
        arguments.extend(filled);
    }
    Ok(arguments)
}

fn begins_with_a_value(template: &Template) -> bool {
    match template {
        Template::One(pieces) => !matches!(pieces.first(), Some(Piece::Text(_))),
        Template::Each(_) => true,
    }
}

fn one(pieces: &[Piece], values: &Values<'_>) -> Result<String, FillError> {
    let mut argument = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => argument.push_str(text),
            Piece::Id => argument.push_str(&values.id.to_string()),
            Piece::Key => argument.push_str(values.key),
            Piece::Attempt => argument.push_str(&values.attempt.to_string()),
            Piece::Job => argument.push_str(values.job),
            Piece::Directory => argument.push_str(values.directory),
            Piece::Payload(path) => argument.push_str(&text(at(values.payload, path)?)),
        }
    }
    Ok(argument)
}

fn at<'a>(payload: &'a Value, path: &[String]) -> Result<&'a Value, FillError> {
    let found = path.iter().try_fold(payload, |value, field| value.get(field));
    found.filter(|value| path.is_empty() || !value.is_null()).ok_or_else(|| FillError::Missing(path.join(".")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(templates: &[&str], payload: Value) -> Result<Vec<String>, String> {
        let templates: Vec<Template> =
            templates.iter().map(|text| Template::parse(text)).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
        let values = Values { id: 70, key: "k-1", attempt: 2, job: "night", directory: "/work", payload: &payload };
        fill(&templates, &values).map_err(|error| error.to_string())
    }

    #[test]
    fn each_template_is_one_argument_whatever_is_in_it() {
        let payload =
            json!({"file": "a b; rm -rf $(HOME) | `x` \"'", "n": -3, "deep": {"x": [1, true]}, "list": ["p", 2]});
        let arguments = filled(
            &[
                "--in",
                "{payload.file}",
                "-n={payload.n}",
                "{payload.n}",
                "{payload.deep}",
                "{id}:{key}:{attempt}",
                "{job}@{directory}",
                "{{x}}",
            ],
            payload.clone(),
        );
        let expected = [
            "--in",
            "a b; rm -rf $(HOME) | `x` \"'",
            "-n=-3",
            "-3",
            r#"{"x":[1,true]}"#,
            "70:k-1:2",
            "night@/work",
            "{x}",
        ];
        assert_eq!(arguments.expect("it fits"), expected);
        assert_eq!(filled(&["{payload.list[]}", ""], payload).expect("it fits"), ["p", "2", ""]);
        assert_eq!(filled(&["{payload}"], json!("text")).expect("it fits"), ["text"]);
        assert_eq!(filled(&["{payload[]}"], json!([])).expect("it fits"), Vec::<String>::new());
    }

    #[test]
    fn what_does_not_fit_says_so() {
        for (templates, payload, expected) in [
            (vec!["{payload.file}"], json!({}), "the payload has no \"file\""),
            (vec!["{payload.file}"], json!({"file": null}), "the payload has no \"file\""),
            (vec!["{payload.list[]}"], json!({"list": 3}), "\"list\" is not a list"),
            (vec!["{payload.file}"], json!({"file": "--exec=sh"}), "would be taken for an option"),
            (vec!["{payload[]}"], json!(["a", "-o"]), "would be taken for an option"),
            (vec!["{payload}"], json!("a\0b"), "NUL"),
            (vec!["a{payload[]}"], json!([]), "an argument of its own"),
            (vec!["{payload"], json!([]), "without its }"),
            (vec!["}"], json!([]), "without its }"),
            (vec!["{payload.}"], json!([]), "no placeholder"),
            (vec!["{payloads}"], json!([]), "no placeholder"),
        ] {
            let error = filled(&templates, payload).expect_err(&format!("{templates:?}"));
            assert!(error.contains(expected), "{templates:?}: {error}");
        }
        assert_eq!(filled(&["--", "{payload}"], json!("-o")).expect("options are over"), ["--", "-o"]);
        assert_eq!(filled(&["--o={payload}"], json!("-o")).expect("not an option of its own"), ["--o=-o"]);
    }
}
