"""What DeepSpeed's driver needs from us: Hugging Face's model and first weights, ds_config.json.

Run as ``python -m trainrig.train.deepspeed_init FOLDER`` before the driver.  Beside what
`huggingface_init` writes are ds_config.json, of the experiment, and ds_config-probe.json, of the
comparison's five steps.
"""

from __future__ import annotations

import json

from trainrig.train import huggingface_init
from trainrig.train.launch_files import deepspeed_config
from trainrig.train.parity import probe_of


def main() -> None:
    """Write all files."""
    folder, experiment = huggingface_init.write()
    for name, own in (("ds_config", experiment), ("ds_config-probe", probe_of(experiment))):
        text = json.dumps(deepspeed_config(own), indent=2)
        (folder / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
