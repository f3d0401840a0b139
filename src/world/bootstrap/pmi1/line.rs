//! Lines of PMI-1: `cmd=NAME key=value …`. Pure functions over what another program has sent.

use std::fmt::Write as _;

/// Longest line that is taken; managers send values of 1024 bytes at most.
pub(super) const MAX_LINE: usize = 1 << 14;

/// One line, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Line<'a> {
    /// Takes a line without its line end apart. Words without `=` are passed over: they belong to
    /// a message for people.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        if bytes.len() > MAX_LINE {
            return Err(format!("a line of {} bytes", bytes.len()));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| "a line that is no text".to_owned())?;
        if text.chars().any(char::is_control) {
            return Err("a line with control characters".to_owned());
        }
        let pairs: Vec<_> = text
            .split(' ')
            .filter_map(|word| word.split_once('='))
            .filter(|(key, _)| !key.is_empty())
            .collect();
        let line = Self { pairs };
        line.command()?;
        Ok(line)
    }

    /// What stands after `cmd=`, which comes first.
    pub(super) fn command(&self) -> Result<&'a str, String> {
        match self.pairs.first() {
            Some(&("cmd", command)) if !command.is_empty() => Ok(command),
            _ => Err("a line without cmd=".to_owned()),
        }
    }

    /// The first value of `key`.
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        let mut pairs = self.pairs.iter();
        pairs.find(|pair| pair.0 == key).map(|pair| pair.1)
    }

    /// The value of `key`, which must be there and be a number.
    pub(super) fn number(&self, key: &str) -> Result<usize, String> {
        let text = self.text(key)?;
        text.parse()
            .map_err(|_| format!("{key}={text}, not a number"))
    }

    /// The value of `key`, which must be there.
    pub(super) fn text(&self, key: &str) -> Result<&'a str, String> {
        match self.get(key) {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(format!("an answer without {key}=")),
        }
    }

    /// # Errors
    /// If this is not a good answer of kind `command`.
    pub(super) fn expect(&self, command: &str) -> Result<(), String> {
        let said = self.command()?;
        if said != command {
            return Err(format!("cmd={said} where cmd={command} was due"));
        }
        match self.get("rc") {
            None | Some("0") => Ok(()),
            Some(code) => {
                let why = self.get("msg").unwrap_or("no reason given");
                Err(format!("rc={code} ({why})"))
            }
        }
    }
}

/// `blob` as values of at most `longest` bytes, in hexadecimal: the first begins with their
/// number and a dot. `None` if `longest` leaves no room.
pub(super) fn to_values(blob: &[u8], longest: usize) -> Option<Vec<String>> {
    // Room for the count in every piece is simpler than in the first only.
    let room = longest.checked_sub(8)? / 2;
    if room == 0 {
        return None;
    }
    let count = blob.len().div_ceil(room).max(1);
    let mut values: Vec<_> = blob.chunks(room).map(ucxrun::wire::to_hex).collect();
    values.resize(count, String::new());
    let mut first = String::new();
    // Writing to a string cannot fail.
    let _ = write!(first, "{count}.{}", values[0]);
    values[0] = first;
    Some(values)
}

/// How many values there are, and what the first one holds.
pub(super) fn first_value(value: &str) -> Result<(usize, Vec<u8>), String> {
    let wrong = || "a value that no rank of this job has put".to_owned();
    let (count, hex) = value.split_once('.').ok_or_else(wrong)?;
    let count = count.parse().map_err(|_| wrong())?;
    if count == 0 || count > ucxrun::wire::MAX_BLOB {
        return Err(wrong());
    }
    Ok((count, from_hex(hex)?))
}

/// What a further value holds.
pub(super) fn from_hex(hex: &str) -> Result<Vec<u8>, String> {
    let wrong = || "a value that no rank of this job has put".to_owned();
    let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(wrong);
    let pairs = hex.as_bytes().chunks(2);
    pairs
        .map(|pair| match *pair {
            [high, low] => {
                let byte = digit(high)? << 4 | digit(low)?;
                u8::try_from(byte).map_err(|_| wrong())
            }
            _ => Err(wrong()),
        })
        .collect()
}

/// Everything that is done with a line that arrives.
#[cfg(test)]
pub(in crate::world::bootstrap) fn digest(bytes: &[u8]) {
    let Ok(line) = Line::parse(bytes) else { return };
    let command = line.command().unwrap();
    assert!(!command.is_empty() && !command.contains(' '));
    for (key, value) in &line.pairs {
        assert!(!key.is_empty() && !key.contains(['=', ' ', '\n']));
        assert!(!value.contains([' ', '\n']));
        assert!(line.get(key).is_some());
    }
    for key in ["size", "vallen_max", "keylen_max"] {
        if let Ok(number) = line.number(key) {
            let text = line.get(key).unwrap();
            assert_eq!(
                text.trim_start_matches(['+', '0']).parse().unwrap_or(0),
                number
            );
        }
    }
    if let Some(value) = line.get("value") {
        if let Ok((count, blob)) = first_value(value) {
            assert!(count > 0 && blob.len() * 2 < value.len());
        }
        if let Ok(blob) = from_hex(value) {
            assert_eq!(ucxrun::wire::to_hex(&blob), value.to_lowercase());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_corpus_is_understood() {
        let mut lines = 0;
        let corpus = concat!(
            include_str!("../../../../tests/fuzz/corpus/pmi1/hydra"),
            include_str!("../../../../tests/fuzz/corpus/pmi1/hydra-port"),
            include_str!("../../../../tests/fuzz/corpus/pmi1/slurm"),
        );
        for text in corpus.lines() {
            let line = Line::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"));
            digest(text.as_bytes());
            let failed = text.contains("rc=-1") || text.contains("rc=1");
            let expected = line.expect(line.command().unwrap());
            assert_eq!(expected.is_err(), failed, "{text}");
            lines += 1;
        }
        assert!(lines >= 30, "{lines} lines");
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for text in [
            "",
            "get_result rc=0",
            "rc=0 cmd=get_result",
            "cmd=",
            "cmd=a\tb",
        ] {
            assert!(Line::parse(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(Line::parse(b"cmd=a\xff").is_err());
        assert!(Line::parse(&[b"cmd=".as_slice(), &[b'a'; MAX_LINE]].concat()).is_err());
        let line = Line::parse(b"cmd=get_result rc=-1 msg=key_not_found value=").unwrap();
        assert_eq!(
            line.expect("get_result").unwrap_err(),
            "rc=-1 (key_not_found)"
        );
        assert!(line.expect("put_result").unwrap_err().contains("was due"));
        assert!(line.text("value").is_err());
        assert!(line.number("msg").is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn blobs_travel_in_pieces(
            blob in prop::collection::vec(any::<u8>(), 0..3000),
            longest in 10..1000usize,
        ) {
            let values = to_values(&blob, longest).unwrap();
            prop_assert!(values.iter().all(|value| value.len() <= longest));
            let (count, mut back) = first_value(&values[0]).unwrap();
            prop_assert_eq!(count, values.len());
            for value in &values[1..] {
                back.extend(from_hex(value).unwrap());
            }
            prop_assert_eq!(back, blob);
        }
    }
}
