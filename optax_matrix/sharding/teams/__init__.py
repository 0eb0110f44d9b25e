"""The last round of matrices, of which too few are left over for all owners.

Of K matrices on N owners, ``K % N`` make a last round, in which some devices work and
others wait. What is decided here, from shapes alone:

* `_balance`: which owners get the matrices of the last rounds, so that the busiest
  device has little to do over all shapes;
* `_team_sizes`: how many consecutive owners, a team, share each of those matrices, by
  hand or by the times of `_cost_model`.

What runs in a step, inside the ``shard_map`` of `owners`:

* `_last_round`: the collectives of a team, and the last round of a stack;
* `_newton_schulz`: the form of the kernel in which a team computes together, each
  device with some columns of every matrix. Kernels without such a form get whole
  matrices, and everything else in a chain stays with the owners.
"""
