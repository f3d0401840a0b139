//! Arrays have 1 to 6 dimensions.

use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let array = GlobalArray::<u8, 7>::new(world, [2; 7])?;
        array.close()
    })
}
