"""Finite differences along public directions, and the weights they leave alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprolib.errors import ReproError
from reprolib.learn.directions import CHUNK, Directions
from reprolib.learn.perturbation import Stacked, Streamed, Swapped, Vectorised
from reprolib.learn.trainer import Trainer
from reprolib.learn.zeroth_order import METHODS, AlongDirections, FiniteDifferences, LossGradient, for_method
from reprolib.lm.models import adapter_parameters
from reprolib.privacy.mechanism import EntropySource, GaussianSum, PoissonSampler
from reprolib.privacy.plan import Plan
from tests import tiny

RECORDS = 12


class Quadratic:
    """Record i has the loss (curvature_i |theta|^2) / 2 + slope_i . theta over two tensors."""

    def __init__(self, *, dtype=torch.float64, sizes=((3, 2), (4,)), seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.parameters = [torch.randn(*s, generator=generator).to(dtype).requires_grad_() for s in sizes]
        d = sum(p.numel() for p in self.parameters)
        self.slopes = torch.randn(RECORDS, d, generator=generator).to(dtype)
        self.curvatures = torch.rand(RECORDS, generator=generator).to(dtype)

    def theta(self):
        return torch.cat([p.flatten() for p in self.parameters])

    def loss(self, records):
        rows = torch.tensor(list(records))
        return self.curvatures[rows] * self.theta().square().sum() / 2 + (
            self.slopes[rows] * self.theta()
        ).sum(1)

    def mean_loss(self):
        return self.loss(range(RECORDS)).mean().item()

    def gradients(self, records):
        rows = torch.tensor(list(records))
        return (self.curvatures[rows, None] * self.theta() + self.slopes[rows]).detach()


def difference_map(problem, *, num_directions=5, seed=3, **options):
    directions = Directions(problem.parameters, num_directions=num_directions, seed=seed)
    return FiniteDifferences(problem.loss, Swapped(directions), **options)


def rows(record_map, records=range(RECORDS)):
    return torch.cat(list(record_map.vectors(list(records))))


def plan(**changes) -> Plan:
    given = {
        "unit": "one example", "population": RECORDS, "expected_batch_size": 6, "rounds": 8, "clip_norm": 1.0,
        "noise_multiplier": 0.5, "delta": 1e-5,
    }  # fmt: skip
    return Plan(**given | changes)


def train(record_map, update, plan, entropy, *, rounds=None, total=None):
    """The loop of Algorithm 1; every slot holds its own number as a record."""
    sampler = PoissonSampler(plan, entropy)
    total = total or GaussianSum(plan, entropy, dimension=record_map.dimension)
    for _ in range(rounds or plan.rounds):
        for block in record_map.vectors(sampler.draw().tolist(), entropy):
            total.add(block)
        update.apply(total.release())
    return total


def bits(parameters):
    return [p.detach().clone() for p in parameters]


def same_bits(before, after):
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def token_loss(model):
    """Cross-entropy of the last token of sequences of five tokens."""

    def loss(batch):
        ids = torch.tensor(batch)
        logits = model(ids[:, :-1]).logits[:, -1]
        return torch.nn.functional.cross_entropy(logits, ids[:, -1], reduction="none")

    return loss


def sequences(count=6):
    return torch.randint(4, 20, (count, 5), generator=torch.Generator().manual_seed(1)).tolist()


# --- directions


def test_a_direction_is_the_same_whenever_it_is_drawn_again():
    problem = Quadratic()
    a, b = (Directions(problem.parameters, num_directions=4, seed=9) for _ in range(2))
    a.direction(0), a.direction(3)
    assert torch.equal(a.direction(2), b.direction(2))


def test_rounds_directions_tensors_and_seeds_differ():
    equal_sized = [torch.zeros(50), torch.zeros(50)]
    directions = Directions(equal_sized, num_directions=2, seed=0)
    drawn = [*directions.direction(0).split(50), *directions.direction(1).split(50)]
    directions.round = 1
    drawn += directions.direction(0).split(50)
    drawn += Directions(equal_sized, num_directions=2, seed=1).direction(0).split(50)
    assert len({tuple(d.tolist()) for d in drawn}) == len(drawn)


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher", "sphere"])
def test_coordinates_have_mean_zero_and_variance_one_across_chunks(distribution):
    long = [torch.zeros(CHUNK + 1000), torch.zeros(7)]
    z = Directions(long, num_directions=1, seed=5, distribution=distribution).direction(0)
    assert abs(float(z.mean())) < 4 / math.sqrt(len(z))
    assert float(z.square().mean()) == pytest.approx(1, abs=4 * math.sqrt(2 / len(z)))
    assert not torch.equal(z[:1000], z[CHUNK : CHUNK + 1000])
    if distribution == "rademacher":
        assert set(z.tolist()) == {-1.0, 1.0}
    if distribution == "sphere":
        assert float(z.norm()) == pytest.approx(math.sqrt(len(z)))


@pytest.mark.parametrize("method", ["spsa", "mezo", "dpzero"])
def test_on_average_the_released_vector_points_along_the_gradient(method):
    """E[(1/K) sum_k (z_k . g) z_k] = g for every law with E[z z^T] = I; within four standard errors."""
    problem = Quadratic()
    repeats = 1500
    directions = for_method(method, problem.parameters, seed=1)
    record_map = FiniteDifferences(problem.loss, Swapped(directions), scale=1e-2)
    estimates = []
    for directions.round in range(repeats):
        estimates.append(rows(record_map, [0])[0, 0] * directions.direction(0).double())
    estimates = torch.stack(estimates)
    error = (estimates.mean(0) - problem.gradients([0])[0]).abs()
    assert bool((error < 4 * estimates.std(0) / math.sqrt(repeats)).all())


def test_an_update_is_the_weighted_sum_of_the_directions_whether_kept_or_drawn_again():
    coefficients = torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)
    results = []
    for keep in (False, True):
        problem = Quadratic(sizes=((CHUNK + 3,), (2, 2)))
        directions = Directions(problem.parameters, num_directions=3, seed=2, keep=keep)
        before = problem.theta().detach().clone()
        expected = sum(c * directions.direction(k).double() for k, c in enumerate(coefficients))
        directions.subtract(coefficients, scale=0.1)
        results.append(problem.theta().detach())
        torch.testing.assert_close(results[-1], before - 0.1 * expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_stacked_at_many_shifts_are_those_moved_one_by_one(dtype):
    problem, shifts = Quadratic(dtype=dtype), [(0, 0.1), (2, -0.1), (0, -0.1)]
    for keep in (False, True):
        directions = Directions(problem.parameters, num_directions=3, seed=2, keep=keep)
        for index, parameter in enumerate(problem.parameters):
            one_by_one = [directions.shifted(index, s, torch.empty_like(parameter)) for s in shifts]
            found = directions.stacked(index, shifts)
            torch.testing.assert_close(found, torch.stack(one_by_one).detach())


def test_kept_directions_are_those_of_the_current_round():
    problem = Quadratic()
    kept, drawn = (Directions(problem.parameters, num_directions=2, seed=2, keep=k) for k in (True, False))
    for round_ in (0, 1, 0):
        kept.round = drawn.round = round_
        assert torch.equal(kept.direction(1), drawn.direction(1))


def test_a_bfloat16_update_is_summed_in_float32_and_rounded_once():
    exact, rounded = Quadratic(dtype=torch.float32), Quadratic(dtype=torch.bfloat16)
    with torch.no_grad():
        for wide, narrow in zip(exact.parameters, rounded.parameters, strict=True):
            wide.copy_(narrow)
    for problem in (exact, rounded):
        directions = Directions(problem.parameters, num_directions=64, seed=2)
        directions.subtract(torch.full((64,), 0.01), scale=1.0)
    for wide, narrow in zip(exact.parameters, rounded.parameters, strict=True):
        assert torch.equal(wide.bfloat16(), narrow)


# --- finite differences


def test_a_two_sided_difference_of_a_quadratic_is_its_directional_derivative():
    problem = Quadratic()
    record_map = difference_map(problem, scale=1e-3)
    z = torch.stack([record_map.directions.direction(k) for k in range(5)]).double()
    expected = problem.gradients(range(RECORDS)) @ z.T / 5
    torch.testing.assert_close(rows(record_map), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("batch_size", [1, 5, 100])
def test_rows_do_not_depend_on_how_the_records_are_batched(batch_size):
    assert torch.equal(
        rows(difference_map(Quadratic(), batch_size=batch_size)), rows(difference_map(Quadratic()))
    )


def test_changing_one_record_leaves_every_other_row_bit_for_bit():
    problem, changed = Quadratic(), Quadratic()
    changed.slopes[4] += 100
    a, b = rows(difference_map(problem)), rows(difference_map(changed))
    others = [i for i in range(RECORDS) if i != 4]
    assert torch.equal(a[others], b[others])
    assert not torch.equal(a[4], b[4])


@settings(max_examples=30, deadline=None)
@given(size=st.floats(1e-3, 1e6), clip_norm=st.floats(1e-3, 10), k=st.integers(1, 9), seed=st.integers(0, 99))
def test_adding_one_record_moves_the_sum_by_at_most_clip_norm(size, clip_norm, k, seed):
    problem = Quadratic(seed=seed)
    problem.slopes *= size
    found = rows(difference_map(problem, num_directions=k, seed=seed))
    sums = []
    for kept in (found, found[1:]):
        total = GaussianSum(
            plan(noise_multiplier=0.0, clip_norm=clip_norm), EntropySource.research(0), dimension=k
        )
        total.add(kept)
        sums.append(total._sum)
    assert float((sums[0] - sums[1]).norm()) <= clip_norm * (1 + 1e-9)


def test_a_loss_that_is_nan_for_one_record_counts_as_zero_and_the_others_stay():
    whole = Quadratic()
    broken = Quadratic()
    broken.curvatures[3] = math.nan
    kept = [i for i in range(RECORDS) if i != 3]
    sums = []
    for problem, records in ((broken, range(RECORDS)), (whole, kept)):
        total = GaussianSum(plan(noise_multiplier=0.0), EntropySource.research(0), dimension=5)
        total.add(rows(difference_map(problem), records))
        sums.append(total.release())
    torch.testing.assert_close(sums[0], sums[1], rtol=0, atol=1e-15)


def test_an_empty_batch_releases_noise_alone_and_steps():
    problem = Quadratic()
    record_map = difference_map(problem)
    assert list(record_map.vectors([])) == []
    before = problem.theta().detach().clone()
    total = GaussianSum(plan(), EntropySource.research(0), dimension=5)
    released = total.release()
    AlongDirections(record_map.directions, learning_rate=0.1).apply(released)
    noise = EntropySource.research(0).normal(5) * plan().noise_std
    assert released.numpy() == pytest.approx(noise)
    assert not torch.equal(problem.theta(), before)


def test_the_directions_seed_does_not_determine_the_noise():
    released = []
    for seed in (1, 2):
        problem = Quadratic()
        record_map = difference_map(problem)
        total = GaussianSum(plan(), EntropySource.research(seed), dimension=5)
        total.add(rows(record_map))
        released.append(total.release())
    assert bool((released[0] != released[1]).all())


# --- weights come back


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["swapped", "streamed", "vectorised"])
def test_full_parameter_differences_leave_every_weight_bit_for_bit(way, dtype):
    model = tiny.policy(dtype=dtype).model
    parameters = list(model.parameters())
    directions = Directions(parameters, num_directions=4, seed=0)
    perturbation = {
        "swapped": lambda: Swapped(directions),
        "streamed": lambda: Streamed(directions, model),
        "vectorised": lambda: Vectorised(directions, model),
    }[way]()
    before = bits(parameters)
    pointers = [p.data_ptr() for p in parameters]
    found = rows(FiniteDifferences(token_loss(model), perturbation), sequences())
    assert bool((found != 0).any())
    assert same_bits(before, bits(parameters))
    assert pointers == [p.data_ptr() for p in parameters]


@pytest.mark.parametrize("length", [None, len])
def test_passes_over_records_of_similar_length_return_the_records_in_their_order(length):
    """Records of lengths that fall and rise: a row does not depend on which pass it was in."""
    model = tiny.policy(dtype=torch.float64).model
    records = [row[: 5 - i % 3] for i, row in enumerate(sequences())]

    def loss(batch):
        return torch.cat([token_loss(model)([row]) for row in batch])

    directions = Directions(list(model.parameters()), num_directions=2, seed=0)
    record_map = FiniteDifferences(loss, Swapped(directions), batch_size=2, length=length)
    alone = torch.cat([rows(record_map, [record]) for record in records])
    assert torch.allclose(rows(record_map, records), alone, rtol=1e-12, atol=0)
    if length:
        blocks = [[len(records[i]) for i in block] for block in record_map._blocks(records)]
        assert all(len(set(block)) == 1 for block in blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moving_the_weights_in_place_and_back_would_change_them(dtype):
    """Why the rule is needed: +mu z, -2 mu z, +mu z in the weights' own dtype."""
    theta = 0.02 * torch.randn(10_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    z = Directions([theta], num_directions=1, seed=0).direction(0).to(dtype)
    back = theta.clone().add_(z, alpha=1e-3).sub_(z, alpha=2e-3).add_(z, alpha=1e-3)
    assert float((back != theta).float().mean()) > 0.05


@pytest.mark.parametrize("way", ["swapped", "streamed", "stacked", "vectorised"])
def test_a_loss_that_fails_half_way_leaves_the_weights_and_the_modules(way):
    policy = tiny.with_adapter()
    parameters = list(adapter_parameters(policy.model).values())
    directions = Directions(parameters, num_directions=2, seed=0)
    perturbation = {
        "swapped": lambda: Swapped(directions),
        "streamed": lambda: Streamed(directions, policy.model),
        "stacked": lambda: Stacked(directions, policy.model),
        "vectorised": lambda: Vectorised(directions, policy.model),
    }[way]()
    before, loss = bits(parameters), token_loss(policy.model)
    clean = loss(sequences())

    def fails(batch):
        loss(batch)
        raise ValueError("out of memory")

    with pytest.raises(ValueError, match="out of memory"):
        rows(FiniteDifferences(fails, perturbation), sequences())
    assert same_bits(before, bits(parameters))
    assert torch.equal(clean, loss(sequences()))


def test_a_failure_inside_a_module_puts_its_weights_back():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(4, 1))  # shapes do not fit
    parameters = list(model.parameters())
    before = bits(parameters)
    perturbation = Streamed(Directions(parameters, num_directions=1, seed=0), model)
    with pytest.raises(RuntimeError):
        rows(FiniteDifferences(lambda batch: model(torch.tensor(batch)).sum(1), perturbation), [[1.0] * 3])
    assert same_bits(before, bits(parameters))


def test_all_ways_to_move_an_adapter_give_the_same_differences():
    policy = tiny.with_adapter(dtype=torch.float64)
    parameters = list(adapter_parameters(policy.model).values())
    directions = Directions(parameters, num_directions=5, seed=0)
    ways = [
        Swapped(directions), Streamed(directions, policy.model),
        Stacked(directions, policy.model), Stacked(directions, policy.model, copies=3),
        Stacked(Directions(parameters, num_directions=5, seed=0, keep=True), policy.model),
        Vectorised(directions, policy.model), Vectorised(directions, policy.model, copies=3),
    ]  # fmt: skip
    found = [rows(FiniteDifferences(token_loss(policy.model), way), sequences()) for way in ways]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-8, atol=1e-10)


def test_all_ways_to_move_all_weights_give_the_same_differences():
    model = tiny.policy(dtype=torch.float64).model
    directions = Directions(list(model.parameters()), num_directions=3, seed=0)
    ways = [Swapped(directions), Streamed(directions, model), Vectorised(directions, model, copies=4)]
    found = [rows(FiniteDifferences(token_loss(model), way), sequences()) for way in ways]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-8, atol=1e-10)


def test_a_weight_shared_by_two_modules_is_moved_in_both():
    model = tiny.policy(dtype=torch.float64).model
    assert model.lm_head.weight is model.get_input_embeddings().weight
    parameters = list(model.parameters())
    directions = Directions(parameters, num_directions=3, seed=0)
    a, b = (
        rows(FiniteDifferences(token_loss(model), way), sequences())
        for way in (Swapped(directions), Streamed(directions, model))
    )
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


# --- the loop


def test_every_method_lowers_the_loss_of_a_quadratic():
    for method in METHODS:
        problem = Quadratic()
        directions = for_method(method, problem.parameters, seed=0)
        private = method.startswith("dp")
        p = plan(
            rounds=200, expected_batch_size=RECORDS, clip_norm=20.0 if private else math.inf,
            noise_multiplier=0.2 if private else 0.0,
        )  # fmt: skip
        before = problem.mean_loss()
        train(
            FiniteDifferences(problem.loss, Swapped(directions)),
            AlongDirections(directions, learning_rate=0.02), p, EntropySource.research(0),
        )  # fmt: skip
        assert problem.mean_loss() < before - 0.5, method


def test_a_restored_run_ends_where_the_uninterrupted_one_does():
    def fresh(entropy):
        problem = Quadratic()
        record_map = difference_map(problem)
        return problem, record_map, AlongDirections(record_map.directions, learning_rate=0.05), entropy

    whole, record_map, update, entropy = fresh(EntropySource.research(4))
    train(record_map, update, plan(), entropy)
    first, record_map, update, entropy = fresh(EntropySource.research(4))
    total = train(record_map, update, plan(), entropy, rounds=3)
    saved, state = bits(first.parameters), update.state()
    second, record_map, update, _ = fresh(entropy)
    with torch.no_grad():
        for parameter, value in zip(second.parameters, saved, strict=True):
            parameter.copy_(value)
    update.restore(state)
    assert update.directions.round == 3
    train(record_map, update, plan(), entropy, rounds=5, total=total)
    assert same_bits(bits(whole.parameters), bits(second.parameters))


def test_an_update_that_is_not_finite_moves_nothing_and_its_round_counts():
    problem = Quadratic()
    record_map = difference_map(problem)
    update = AlongDirections(record_map.directions, learning_rate=0.1)
    before = bits(problem.parameters)
    update.apply(torch.full((5,), math.nan, dtype=torch.float64))
    assert same_bits(before, bits(problem.parameters))
    assert record_map.directions.round == 1


# --- the first-order baseline


def test_loss_gradients_are_those_of_one_record_at_a_time():
    problem = Quadratic()
    torch.testing.assert_close(
        rows(LossGradient(problem.loss, problem.parameters, batch_size=5)), problem.gradients(range(RECORDS))
    )


def test_loss_gradients_of_a_language_model_are_those_of_one_backward_pass_a_record():
    policy = tiny.with_adapter(dtype=torch.float64)
    parameters = list(adapter_parameters(policy.model).values())
    loss = token_loss(policy.model)
    found = rows(LossGradient(loss, parameters, batch_size=4), sequences())
    for row, record in zip(found, sequences(), strict=True):
        one = torch.autograd.grad(loss([record]).sum(), parameters)
        torch.testing.assert_close(row, torch.cat([g.flatten() for g in one]), rtol=1e-9, atol=1e-12)


def test_dp_adamw_is_the_trainer_with_the_loss_gradient():
    """Without noise and clipping, one AdamW step along the mean gradient of the loss."""
    policy, twin = (tiny.with_adapter(dtype=torch.float64) for _ in range(2))
    parameters, expected = (list(adapter_parameters(p.model).values()) for p in (policy, twin))
    p = plan(population=6, expected_batch_size=6, rounds=1, noise_multiplier=0.0, clip_norm=math.inf)
    record_map = LossGradient(token_loss(policy.model), parameters)
    Trainer(policy, record_map, sequences(), p, EntropySource.research(0), learning_rate=1e-2).step()
    token_loss(twin.model)(sequences()).mean().backward()
    torch.optim.AdamW(expected, lr=1e-2, weight_decay=0.0).step()
    for ours, theirs in zip(parameters, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def test_a_gradient_that_is_not_finite_stays_with_its_record():
    linear = torch.nn.Linear(2, 1).double()
    inputs = torch.tensor([[1.0, 2.0], [math.inf, 0.0], [3.0, -1.0]], dtype=torch.float64)
    record_map = LossGradient(
        lambda batch: linear(inputs[list(batch)]).square().sum(1), list(linear.parameters())
    )
    found, alone = rows(record_map, range(3)), rows(record_map, [0])
    assert torch.equal(found.isfinite().all(1), torch.tensor([True, False, True]))
    torch.testing.assert_close(found[:1], alone)


# --- bad input


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_fewer_than_one_direction_is_refused(k):
    with pytest.raises(ReproError, match="num_directions"):
        Directions([torch.zeros(3)], num_directions=k, seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameters": []}, "at least one tensor"),
        ({"parameters": [torch.zeros(4, 4).T[1:]]}, "contiguous"),
        ({"parameters": [torch.zeros(4, dtype=torch.int64)]}, "floating"),
        ({"seed": -1}, "seed = -1"),
        ({"distribution": "cauchy"}, "cauchy"),
    ],
)
def test_directions_refuse_what_they_cannot_draw(changes, message):
    given = {"parameters": [torch.zeros(3)], "num_directions": 2, "seed": 0} | changes
    with pytest.raises(ReproError, match=message):
        Directions(given.pop("parameters"), **given)


def test_methods_with_one_direction_refuse_more_and_unknown_methods_are_named():
    with pytest.raises(ReproError, match="dpzero has one direction"):
        for_method("dpzero", [torch.zeros(3)], seed=0, num_directions=2)
    with pytest.raises(ReproError, match="'adam'"):
        for_method("adam", [torch.zeros(3)], seed=0)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e-10), (torch.bfloat16, 1e-6)])
def test_a_mu_that_the_weights_cannot_show_is_named(dtype, scale):
    record_map = difference_map(Quadratic(dtype=dtype), scale=scale)
    with pytest.raises(
        ReproError, match=f"mu = {scale:g} moves .* in {dtype}: the two forward passes coincide"
    ):
        rows(record_map)


def test_a_mu_that_the_losses_cannot_show_is_named_on_public_records():
    problem = Quadratic(dtype=torch.float32)
    record_map = difference_map(problem, scale=1e-5)
    record_map.check([0, 1])
    problem.curvatures[:], problem.slopes[:] = 0, 1e-9
    record_map.loss = lambda batch: 1 + problem.loss(batch)
    with pytest.raises(ReproError, match=r"coincide in torch\.float32 for every record"):
        record_map.check([0, 1])


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"scale": math.nan}, {"batch_size": 0}])
def test_settings_of_a_difference_out_of_range_are_refused(options):
    with pytest.raises(ReproError, match=r"mu|batch_size"):
        difference_map(Quadratic(), **options)


def test_a_loss_of_the_wrong_shape_is_named():
    problem = Quadratic()
    with pytest.raises(ReproError, match=r"losses of shape \(\): expected one for each of 12"):
        rows(
            FiniteDifferences(lambda batch: problem.loss(batch).mean(), difference_map(problem).perturbation)
        )
    with pytest.raises(ReproError, match="losses of shape"):
        rows(LossGradient(lambda batch: problem.loss(batch)[:1], problem.parameters))


def test_perturbations_refuse_tensors_that_they_cannot_move():
    model = tiny.policy().model
    alien = Directions([torch.zeros(3)], num_directions=1, seed=0)
    with pytest.raises(ReproError, match="belongs to no module"):
        Streamed(alien, model)
    with pytest.raises(ReproError, match="not the weight of a linear map"):
        Stacked(Directions(list(model.parameters()), num_directions=1, seed=0), model)
    unused = torch.nn.ModuleDict(
        {"a": torch.nn.Linear(2, 1, bias=False), "b": torch.nn.Linear(2, 1, bias=False)}
    )
    directions = Directions(list(unused.parameters()), num_directions=1, seed=0)
    for way in (Streamed(directions, unused), Stacked(directions, unused)):
        with pytest.raises(ReproError, match=r"never called|not used"):
            rows(FiniteDifferences(lambda batch: unused["a"](torch.ones(len(batch), 2)).sum(1), way), [0, 1])


def test_an_update_of_another_length_is_refused():
    record_map = difference_map(Quadratic())
    with pytest.raises(ReproError, match=r"shape \(4,\): expected \[5\]"):
        AlongDirections(record_map.directions, learning_rate=0.1).apply(torch.zeros(4))
