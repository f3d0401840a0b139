//! A section of a matrix has two ranges.

use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let matrix = GlobalArray::<f64, 2>::new(world, [10, 10])?;
        println!("{}", matrix.get_section((1..3, 2, ..))?);
        Ok(())
    })
}
