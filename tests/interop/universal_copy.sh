#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-cp of a universal checkpoint of DeepSpeed has all of its files: also the optimizer's settings (zero/optimizer_state.pt)
# and a tied parameter's other name, which nobody reads here. The checkpoint is laid out by a script.
. "$TOP/tests/lib/python.sh"
need_python 'torch'
cd "$TEST_TMP" || exit 1
export PATH=$BIN:$PATH
. "$TOP/tests/lib/tap.sh"

"$TORCH_PYTHON" -W ignore -c "
import os, torch
shapes = {'embed.weight': torch.Size((5, 3)), 'norm.weight': torch.Size((3,))}
module = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
module['head.weight'] = module['embed.weight']
for name, shape in {**shapes, 'head.weight': shapes['embed.weight']}.items():
    os.makedirs('tag/zero/' + name)
    for slot in ('fp32', 'exp_avg', 'exp_avg_sq'):
        torch.save({'param': torch.randn(shape)}, f'tag/zero/{name}/{slot}.pt')
    torch.save(torch.tensor(4.0), f'tag/zero/{name}/step.pt')
torch.save({'param_groups': [{'lr': 1e-3}], 'loss_scaler': None}, 'tag/zero/optimizer_state.pt')
torch.save({'module': module, 'param_shapes': [shapes], 'shared_params': {'head.weight': 'embed.weight'}, 'buffer_names': [],
            'global_steps': 4, 'dp_world_size': 2, 'mp_world_size': 1, 'optimizer': None, 'ds_version': '0.19.8'},
           'tag/mp_rank_00_model_states.pt')" >log 2>&1
ok $? "a universal checkpoint: $(tail -n 1 log)"
ckpt-info tag >log 2>&1 && grep -q 'format  *deepspeed' log && grep -q 'tied  *head.weight = embed.weight' log && ckpt-verify tag >log 2>&1
ok $? "it is read: $(tail -n 1 log)"
ckpt-cp tag copy >log 2>&1 && diff -r tag copy >differences
ok $? "the copy has the same files: $(tail -n 1 log) $(head -n 3 differences | tr '\n' ' ')"
[ -s copy/zero/optimizer_state.pt ] && [ -s copy/zero/head.weight/fp32.pt ] && ckpt-diff tag copy >log 2>&1
ok $? "among them those that are not read: $(tail -n 1 log)"
echo "1..$n"
exit $bad
