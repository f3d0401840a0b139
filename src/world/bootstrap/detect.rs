//! Who started this process, by its environment. The order is that of `PGAS_BOOTSTRAP`'s
//! documentation in [`World::from_env`](crate::World::from_env).

use super::pmi1;
use super::store::Meeting;
use crate::error::{Error, ErrorKind, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use ucxrun::Secret;
use ucxrun::wire::env;

/// Forces one way to join.
const FORCE: &str = "PGAS_BOOTSTRAP";

/// How to join the job.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// There is none.
    Nothing,
    Ucxrun,
    /// If there is a libpmix; otherwise `find` again, without.
    Pmix,
    Pmi1(pmi1::Way),
    /// Rank, size, and how they meet.
    Store(u32, u32, Meeting),
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
        let found = match pmi1(&vars)? {
            Some(found) => Some(found),
            None => store(&vars)?,
        };
        return Ok(found.unwrap_or(Found::Nothing));
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
        "env" => (
            store(&vars)?,
            "RANK or WORLD_SIZE, nor what srun sets for the ranks of a step,",
        ),
        _ => {
            return Err(garbled(&format!(
                "{FORCE} is {forced:?}; it can be ucxrun, pmix, pmi1, env or single"
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

/// Secrets of jobs that others start.
const SECRET_FILE: &str = "PGAS_SECRET_FILE";
/// The folder in which ranks meet, if not the working directory.
const FOLDER: &str = "PGAS_RENDEZVOUS";
/// Steps of Slurm with larger numbers are no jobs of ours: the batch script, an interactive shell.
const LAST_STEP: u32 = 0xffff_fff0;

fn store(vars: &Vars<impl Fn(&str) -> Option<OsString>>) -> Result<Option<Found>> {
    // As torchrun sets them; in an indexed job of Kubernetes the rank has another name.
    let rank = ["RANK", "JOB_COMPLETION_INDEX"];
    let rank = rank.into_iter().find(|name| vars.has(name));
    if let Some(rank) = rank.filter(|_| vars.has("WORLD_SIZE")) {
        let (rank, size) = place(vars, rank, "WORLD_SIZE")?;
        if size == 1 {
            return Ok(Some(Found::Nothing));
        }
        let meeting = address(vars, "WORLD_SIZE")?;
        return Ok(Some(Found::Store(rank, size, meeting)));
    }
    // The shell of salloc and the script of sbatch have no step, or one of a kind of its own.
    let steps = ["SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"];
    if steps.iter().all(|name| vars.has(name)) {
        let step: u32 = vars.number("SLURM_STEP_ID", "")?;
        let (rank, size) = place(vars, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")?;
        if size == 1 || step >= LAST_STEP {
            return Ok(Some(Found::Nothing));
        }
        let meeting = if vars.has("MASTER_ADDR") {
            address(vars, "MASTER_ADDR")?
        } else {
            let job: u32 = vars.number("SLURM_JOB_ID", "SLURM_STEP_ID")?;
            // A job that is requeued keeps its number.
            let again: u32 = match vars.has("SLURM_RESTART_COUNT") {
                true => vars.number("SLURM_RESTART_COUNT", "")?,
                false => 0,
            };
            Meeting::File(file(vars, &format!("slurm-{job}.{step}.{again}"))?)
        };
        return Ok(Some(Found::Store(rank, size, meeting)));
    }
    // Where there is no libpmix.
    let ranks = [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "PMIX_NAMESPACE",
    ];
    if ranks.iter().all(|name| vars.has(name)) {
        let (rank, size) = place(vars, ranks[0], ranks[1])?;
        if size == 1 {
            return Ok(Some(Found::Nothing));
        }
        let job = vars.text("PMIX_NAMESPACE", "")?;
        let meeting = Meeting::File(file(vars, &format!("mpirun-{job}"))?);
        return Ok(Some(Found::Store(rank, size, meeting)));
    }
    Ok(None)
}

fn place(
    vars: &Vars<impl Fn(&str) -> Option<OsString>>,
    rank: &str,
    size: &str,
) -> Result<(u32, u32)> {
    let (number, of): (u32, u32) = (vars.number(rank, size)?, vars.number(size, rank)?);
    if number >= of {
        return Err(garbled(&format!(
            "{rank} is {number}, not below {size}, which is {of}"
        )));
    }
    Ok((number, of))
}

/// Where rank 0 listens, with the secret that this needs.
fn address(vars: &Vars<impl Fn(&str) -> Option<OsString>>, besides: &str) -> Result<Meeting> {
    let host = vars.text("MASTER_ADDR", besides)?;
    let port = vars.number("MASTER_PORT", besides)?;
    if host.is_empty() || port == 0 {
        return Err(garbled(&format!(
            "MASTER_ADDR is {host:?} and MASTER_PORT is {port}"
        )));
    }
    let secret = if vars.has(SECRET_FILE) {
        Secret::from_file(Path::new(&vars.text(SECRET_FILE, "")?))
    } else if vars.has(env::SECRET) {
        let text = vars.text(env::SECRET, "")?;
        Secret::from_text(text.as_bytes())
            .map_err(|error| ucxrun::Error::new(error.kind(), format!("{}: {error}", env::SECRET)))
    } else {
        return Err(garbled(&format!(
            "{besides} is set, but neither {SECRET_FILE} nor {} is, by which the ranks know each other; \
             PGAS_BOOTSTRAP=single makes a world of one rank",
            env::SECRET
        )));
    };
    let secret = secret.map_err(|error| garbled(&error.to_string()))?;
    Ok(Meeting::Address { host, port, secret })
}

/// The file in which the ranks of `job` meet.
fn file(vars: &Vars<impl Fn(&str) -> Option<OsString>>, job: &str) -> Result<PathBuf> {
    let folder = match vars.has(FOLDER) {
        true => PathBuf::from(vars.text(FOLDER, "")?),
        false => std::env::current_dir()
            .map_err(|error| garbled(&format!("the working directory: {error}")))?,
    };
    let plain = |c: char| match c.is_ascii_alphanumeric() || ".-".contains(c) {
        true => c,
        false => '_',
    };
    let job: String = job.chars().map(plain).take(100).collect();
    Ok(folder.join(format!(".pgas-{job}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_in(vars: &str) -> Result<Found> {
        let get = |name: &str| {
            vars.split(' ')
                .filter_map(|pair| pair.split_once('='))
                .find(|pair| pair.0 == name)
                .map(|pair| pair.1.into())
        };
        find(get, true)
    }

    fn found(vars: &str) -> String {
        match find_in(vars) {
            Ok(found) => format!("{found:?}"),
            Err(error) => error.to_string(),
        }
    }

    const STEP: &str =
        "SLURM_PROCID=3 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_JOB_ID=17 PGAS_RENDEZVOUS=/r";
    const TORCH: &str =
        "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=5 PGAS_SECRET=0123456789abcdef";
    const HYDRA: &str = "PMI_FD=8 PMI_RANK=1 PMI_SIZE=2";

    #[test]
    fn each_way_is_found_in_its_order() {
        let ucxrun = "PGAS_RANK=0";
        let pmix = "PMIX_NAMESPACE=n PMIX_RANK=1";
        let all = [ucxrun, pmix, HYDRA, TORCH, STEP];
        let names = [
            "Ucxrun",
            "Pmix",
            "Pmi1",
            "Store(1, 2, Address",
            "Store(3, 4, File",
        ];
        for (at, name) in names.iter().enumerate() {
            let vars = all[at..].join(" ");
            assert!(found(&vars).starts_with(name), "{vars}: {}", found(&vars));
        }
        assert_eq!(found(""), "Nothing");
        assert_eq!(found("PGAS_SECRET=x"), "Nothing");
        assert!(found("PMI_PORT=h:1 PMI_ID=3").starts_with("Pmi1(Port"));
        assert!(found(STEP).contains("/r/.pgas-slurm-17.0.0"));
        let address = format!("{STEP} MASTER_ADDR=h MASTER_PORT=5 PGAS_SECRET=0123456789abcdef");
        assert!(found(&address).starts_with("Store(3, 4, Address"));
        let indexed = TORCH.replace("RANK=1", "JOB_COMPLETION_INDEX=1");
        assert!(found(&indexed).starts_with("Store(1, 2, Address"));
    }

    #[test]
    fn a_shell_in_an_allocation_is_alone() {
        for vars in [
            // salloc; sbatch's script; srun --pty; salloc with interactive steps.
            "SLURM_JOB_ID=17 SLURM_NTASKS=4",
            "SLURM_JOB_ID=17 SLURM_NTASKS=4 SLURM_PROCID=0",
            "SLURM_JOB_ID=17 SLURM_PROCID=0 SLURM_STEP_ID=1 SLURM_STEP_NUM_TASKS=1",
            "SLURM_JOB_ID=17 SLURM_PROCID=0 SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=2",
            "RANK=0 WORLD_SIZE=1",
            "JOB_COMPLETION_INDEX=3",
            "RANK=3",
        ] {
            assert_eq!(found(vars), "Nothing", "{vars}");
        }
    }

    #[test]
    fn forced_ways_are_taken_or_refused() {
        let all = format!("PMIX_NAMESPACE=n PMIX_RANK=1 {HYDRA} {STEP}");
        for (forced, name) in [
            ("pmix", "Pmix"),
            ("pmi1", "Pmi1"),
            ("env", "Store"),
            ("single", "Nothing"),
            (
                "ucxrun",
                "joining the job: PGAS_BOOTSTRAP is ucxrun, but PGAS_CONTROL is not set",
            ),
            ("other", "joining the job: PGAS_BOOTSTRAP is \"other\""),
        ] {
            let said = found(&format!("PGAS_BOOTSTRAP={forced} {all}"));
            assert!(said.starts_with(name), "{forced}: {said}");
        }
        for forced in ["pmix", "pmi1", "env"] {
            let said = found(&format!("PGAS_BOOTSTRAP={forced}"));
            assert!(said.contains("not set"), "{said}");
        }
    }

    #[test]
    fn what_is_half_set_is_named() {
        for (vars, name) in [
            ("PMI_FD=8 PMI_RANK=1", "PMI_SIZE is not set"),
            ("PMI_FD=x PMI_RANK=1 PMI_SIZE=2", "PMI_FD is \"x\""),
            ("PMI_PORT=h:1", "PMI_ID is not set"),
            ("RANK=1 WORLD_SIZE=2", "MASTER_ADDR is not set"),
            (
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h",
                "MASTER_PORT is not set",
            ),
            (
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=5",
                "neither PGAS_SECRET_FILE nor PGAS_SECRET",
            ),
            (
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=5 PGAS_SECRET=short",
                "PGAS_SECRET: a secret of 5 bytes",
            ),
            (
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=5 PGAS_SECRET_FILE=/nowhere",
                "/nowhere",
            ),
            ("RANK=2 WORLD_SIZE=2", "RANK is 2, not below WORLD_SIZE"),
            ("RANK=-1 WORLD_SIZE=2", "RANK is \"-1\""),
        ] {
            let said = found(vars);
            assert!(said.contains(name), "{vars}: {said}");
        }
    }
}
