//! Who started this process, by its environment. The order is that of `PGAS_BOOTSTRAP`'s
//! documentation in [`World::from_env`](crate::World::from_env).

use super::pmi1;
use crate::error::{Error, ErrorKind, Result};
use std::ffi::OsString;
use ucxrun::wire::env;

/// Forces one way to join.
const FORCE: &str = "PGAS_BOOTSTRAP";

/// How to join the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// There is none.
    Nothing,
    Ucxrun,
    /// If there is a libpmix; otherwise `find` again, without.
    Pmix,
    Pmi1(pmi1::Way),
}

/// The environment, read strictly.
struct Vars<F>(F);

impl<F: Fn(&str) -> Option<OsString>> Vars<F> {
    fn has(&self, name: &str) -> bool {
        (self.0)(name).is_some()
    }

    fn text(&self, name: &str, besides: &str) -> Result<String> {
        let value = (self.0)(name).ok_or_else(|| {
            garbled(&format!(
                "{name} is not set, but {besides} is; PGAS_BOOTSTRAP=single makes a world of one rank"
            ))
        })?;
        value
            .into_string()
            .map_err(|value| garbled(&format!("{name} is {}, not text", value.display())))
    }

    fn number<T: std::str::FromStr>(&self, name: &str, besides: &str) -> Result<T> {
        let text = self.text(name, besides)?;
        let number = text.trim().parse();
        number.map_err(|_| garbled(&format!("{name} is {text:?}, not a number")))
    }
}

fn garbled(why: &str) -> Error {
    Error::new(ErrorKind::Bootstrap, format!("joining the job: {why}"))
}

/// Whether one way is forced.
pub(super) fn is_forced(get: impl Fn(&str) -> Option<OsString>) -> bool {
    get(FORCE).is_some()
}

/// The way to join, from the variables that `get` returns; not by PMIx if `pmix` is false.
pub(super) fn find(get: impl Fn(&str) -> Option<OsString>, pmix: bool) -> Result<Found> {
    let vars = Vars(get);
    // PGAS_SECRET alone is the user's, for other ways.
    let ucxrun = env::ALL
        .iter()
        .any(|&name| name != env::SECRET && vars.has(name));
    let in_pmix = pmix && vars.has("PMIX_NAMESPACE") && vars.has("PMIX_RANK");
    if !vars.has(FORCE) {
        if ucxrun {
            return Ok(Found::Ucxrun);
        }
        if in_pmix {
            return Ok(Found::Pmix);
        }
        return Ok(pmi1(&vars)?.unwrap_or(Found::Nothing));
    }
    let forced = vars.text(FORCE, "")?;
    let (found, needs) = match forced.as_str() {
        "single" => return Ok(Found::Nothing),
        "ucxrun" => (ucxrun.then_some(Found::Ucxrun), "PGAS_CONTROL"),
        "pmix" => (
            in_pmix.then_some(Found::Pmix),
            "PMIX_NAMESPACE or PMIX_RANK",
        ),
        "pmi1" => (pmi1(&vars)?, "PMI_FD or PMI_PORT"),
        _ => {
            return Err(garbled(&format!(
                "{FORCE} is {forced:?}; it can be ucxrun, pmix, pmi1 or single"
            )));
        }
    };
    found.ok_or_else(|| garbled(&format!("{FORCE} is {forced}, but {needs} is not set")))
}

fn pmi1(vars: &Vars<impl Fn(&str) -> Option<OsString>>) -> Result<Option<Found>> {
    let way = if vars.has("PMI_FD") {
        pmi1::Way::Descriptor {
            fd: vars.number("PMI_FD", "")?,
            rank: vars.number("PMI_RANK", "PMI_FD")?,
            size: vars.number("PMI_SIZE", "PMI_FD")?,
        }
    } else if vars.has("PMI_PORT") {
        pmi1::Way::Port {
            address: vars.text("PMI_PORT", "")?,
            id: vars.number("PMI_ID", "PMI_PORT")?,
        }
    } else {
        return Ok(None);
    };
    Ok(Some(Found::Pmi1(way)))
}
