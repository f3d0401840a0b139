//! Patterns in run-length encoded files, as Life programs exchange them.

use serde::{Deserialize, Serialize};

/// A pattern, and the rule it lives by.
#[derive(Serialize, Deserialize)]
pub struct Pattern {
    pub rows: usize,
    pub cols: usize,
    /// Living cells: row and column.
    pub cells: Vec<(usize, usize)>,
    pub rule: Rule,
}

/// Bit `n` is set if a cell with `n` living neighbours is born, or survives.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Rule {
    pub born: u16,
    pub survives: u16,
}

/// More cells than a pattern may have in a direction.
const LIMIT: usize = 1 << 24;

/// The pattern in a file's text; the error is one line.
pub fn parse(text: &str) -> Result<Pattern, String> {
    let mut lines = text
        .lines()
        .map(str::trim)
        .skip_while(|line| line.starts_with('#') || line.is_empty());
    let header = lines.next().ok_or("the file is empty")?;
    let mut pattern = parse_header(header)?;
    let (mut row, mut col) = (0_usize, 0_usize);
    let mut count = None;
    for symbol in lines.flat_map(str::chars) {
        if let Some(digit) = symbol.to_digit(10) {
            let more = count.unwrap_or(0) * 10 + digit as usize;
            if more >= LIMIT {
                return Err(format!("a run of {more} or more in row {row}"));
            }
            count = Some(more);
            continue;
        }
        if symbol.is_whitespace() {
            continue;
        }
        let run = count.take().unwrap_or(1);
        match symbol {
            'b' => col += run,
            'o' if row < pattern.rows && run <= pattern.cols.saturating_sub(col) => {
                pattern.cells.extend((col..col + run).map(|col| (row, col)));
                col += run;
            }
            'o' => {
                return Err(format!(
                    "cells in row {row} after column {col}, of {} rows and {} columns",
                    pattern.rows, pattern.cols
                ));
            }
            '$' => (row, col) = (row.saturating_add(run), 0),
            '!' => return Ok(pattern),
            _ => {
                return Err(format!(
                    "`{symbol}` in row {row}: only b, o, $ and ! are known"
                ));
            }
        }
    }
    Err("no `!` at the end".to_owned())
}

/// `x = 36, y = 9, rule = B3/S23`
fn parse_header(header: &str) -> Result<Pattern, String> {
    let (mut cols, mut rows, mut rule) = (None, None, "B3/S23");
    for part in header.split(',') {
        let (name, value) = part
            .split_once('=')
            .ok_or(format!("header `{header}`: `{part}` is not `name = value`"))?;
        let number = || {
            let number = value.trim().parse::<usize>().ok();
            number
                .filter(|&number| 0 < number && number < LIMIT)
                .ok_or(format!("header `{header}`: `{}` as a size", value.trim()))
        };
        match name.trim() {
            "x" => cols = Some(number()?),
            "y" => rows = Some(number()?),
            "rule" => rule = value.trim(),
            name => return Err(format!("header `{header}`: unknown `{name}`")),
        }
    }
    let missing = || format!("header `{header}` does not begin with x = …, y = …");
    Ok(Pattern {
        rows: rows.ok_or_else(missing)?,
        cols: cols.ok_or_else(missing)?,
        cells: Vec::new(),
        rule: Rule::parse(rule)?,
    })
}

impl Rule {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("rule `{text}` is not like B3/S23");
        let (born, survives) = text.split_once('/').ok_or_else(wrong)?;
        let counts = |text: &str, letter: &[char]| -> Result<u16, String> {
            let counts = text.strip_prefix(letter).ok_or_else(wrong)?;
            counts
                .chars()
                .try_fold(0, |bits: u16, digit| {
                    digit.to_digit(9).map(|digit| bits | 1 << digit)
                })
                .ok_or_else(wrong)
        };
        let born = counts(born, &['B', 'b'])?;
        // Nothing would live on an empty board, and all around it.
        if born & 1 != 0 {
            return Err(format!("rule `{text}`: cells without neighbours are born"));
        }
        Ok(Self {
            born,
            survives: counts(survives, &['S', 's'])?,
        })
    }
}
