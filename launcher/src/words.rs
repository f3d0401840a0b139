//! Words of a command in one argument, and JSON's strings.

use std::fmt::Write;

/// Splits as a shell does: at spaces, but not in quotes; a backslash takes the next character as it is.
pub(crate) fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (None, ' ' | '\t' | '\n') => words.extend(word.take()),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), _) if c == open => quote = None,
            (None | Some('"'), '\\') => match characters.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err(format!("{text:?} ends with a backslash")),
            },
            _ => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(format!("{text:?} has a quote without its other half"));
    }
    words.extend(word);
    if words.is_empty() {
        return Err(format!("{text:?} has no words"));
    }
    Ok(words)
}

/// As a shell takes it for one word, for people to copy.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// A string of JSON.
pub(crate) fn json(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_and_quoted() {
        for (text, right) in [
            ("gdb --args", &["gdb", "--args"][..]),
            ("  a\tb  ", &["a", "b"]),
            (
                "a 'b c' \"d 'e\" f\\ g ''",
                &["a", "b c", "d 'e", "f g", ""],
            ),
            ("\"a\\\"b\" 'c\\d'", &["a\"b", "c\\d"]),
            ("x'y'z", &["xyz"]),
        ] {
            let words = split(text).unwrap();
            assert_eq!(words, right, "{text}");
            let again: Vec<_> = words.iter().map(|word| quoted(word)).collect();
            assert_eq!(split(&again.join(" ")).unwrap(), right);
        }
        for text in ["", " ", "'a", "\"a", "a\\"] {
            assert!(split(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn json_strings() {
        assert_eq!(json("a\"b\\c\nd é"), "\"a\\\"b\\\\c\\u000ad é\"");
    }
}
