//! A matrix has two indices.

use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let matrix = GlobalArray::<f64, 2>::new(world, [10, 10])?;
        println!("{}", matrix.get(5)?);
        Ok(())
    })
}
