//! The machine code of the measured loops, as `objdump` shows it.

use crate::Result;
use std::path::Path;
use std::process::Command;

/// Loops whose code says the most.
const LOOPS: [&str; 3] = ["get_cached", "put_cached", "fetch_add_cached"];

pub(crate) fn print(program: &Path) -> Result<()> {
    let mut objdump = Command::new("objdump");
    if cfg!(target_arch = "x86_64") {
        objdump.args(["-M", "intel"]);
    }
    let output = objdump
        .args(["--disassemble", "--demangle", "--no-show-raw-insn"])
        .args(["--section", ".text"])
        .arg(program)
        .output()
        .map_err(|error| format!("objdump: {error} (apt-get install binutils)"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Functions are separated by empty lines, and begin with `0000… <name>:`.
    for function in text.split("\n\n") {
        let name = function.lines().next().unwrap_or_default();
        if LOOPS
            .iter()
            .any(|it| name.contains(&format!("loops::{it}")))
        {
            println!("{function}\n");
        }
    }
    Ok(())
}
