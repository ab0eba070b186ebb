"""Carbon intensity: the right number at the right hour, and no gap unseen."""

import csv
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from jaxroute.errors import InputError
from jaxroute.load.carbon import TYPICAL_DAY, read_intensity
from jaxroute.load.files import package_file

HEADER = "timestamp,region,gco2_per_kwh"
GOOD = (
    f"{HEADER}\n2023-06-01T01:00:00Z,DE,200\n2023-06-01T00:00:00Z,SG,500.5\n"
    "2023-06-01T02:00:00+02:00,DE,100\n2023-06-01 01:00,SG,600\n"
)


@pytest.fixture
def grid(tmp_path):
    """Writes a file and returns its path."""

    def write(text, name="grid.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def message(path, regions):
    with pytest.raises(InputError) as caught:
        read_intensity(path, regions)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert text.startswith(str(path))
    return text.removeprefix(str(path))


def test_hours_in_utc_and_regions_in_the_order_asked_for(grid):
    intensity = read_intensity(grid(GOOD), ["SG", "DE"])
    assert intensity.start == pd.Timestamp("2023-06-01T00:00Z")
    assert intensity.g_per_kwh.tolist() == [[500.5, 100], [600, 200]]
    assert intensity.g_per_kwh.dtype == np.float64
    assert "grid.csv" in intensity.note
    assert read_intensity(grid(GOOD), ["DE"]).g_per_kwh.tolist() == [[100], [200]]


def test_parquet(grid, tmp_path):
    frame = pd.read_csv(grid(GOOD))
    hours = ["2023-06-01T01:00Z", "2023-06-01T00:00Z", "2023-06-01T00:00Z", "2023-06-01T01:00Z"]
    frame["timestamp"] = pd.to_datetime(hours)
    frame.to_parquet(tmp_path / "grid.parquet")
    intensity = read_intensity(tmp_path / "grid.parquet", ["SG", "DE"])
    assert intensity.g_per_kwh.tolist() == [[500.5, 100], [600, 200]]


def test_an_hour_across_the_clock_change_is_two_hours(grid):
    rows = ["2023-10-29T02:00:00+02:00,DE,1", "2023-10-29T02:00:00+01:00,DE,2"]
    intensity = read_intensity(grid("\n".join([HEADER, *rows])), ["DE"])
    assert intensity.start == pd.Timestamp("2023-10-29T00:00Z")
    assert intensity.g_per_kwh.tolist() == [[1], [2]]


def test_rows_of_other_regions_may_hold_anything(grid):
    path = grid(f"{GOOD}2023-06-01T00:00:00Z,NO,\n2023-06-01T00:00:00Z,NO,x\n")
    assert read_intensity(path, ["DE"]).g_per_kwh.tolist() == [[100], [200]]


BAD = {
    "gap": (
        f"{GOOD}2023-06-01T07:00:00Z,SG,1\n2023-06-01T07:00:00Z,DE,1\n",
        ": found no intensity of DE from 2023-06-01T02:00Z to 2023-06-01T07:00Z (5 hours), expected"
        " at most 3 missing hours in a row; fill the gap",
    ),
    "twice": (
        f"{GOOD}2023-06-01T03:00:00+02:00,DE,1\n",
        ": row 6, column timestamp: found 2023-06-01T01:00Z once more, of DE, expected each time",
    ),
    "half": (
        f"{GOOD}2023-06-01T02:30:00Z,DE,1\n",
        ": row 6, column timestamp: found 2023-06-01T02:30Z among samples every 60 min, of DE,",
    ),
    "no time": (f"{GOOD},DE,1\n", ": row 6, column timestamp: found nothing, expected a time"),
    "bad time": (f"{GOOD}noon,DE,1\n", ": row 6, column timestamp: found 'noon', expected a time"),
    "negative": (GOOD.replace("200", "-2"), ": row 2, column gco2_per_kwh: found '-2', expected a"),
    "NaN": (
        GOOD.replace("200", "nan"),
        ": row 2, column gco2_per_kwh: found 'nan', expected a num",
    ),
    "none": (
        GOOD.replace("200", ""),
        ": row 2, column gco2_per_kwh: found nothing, expected a num",
    ),
    "infinite": (GOOD.replace("200", "inf"), ": row 2, column gco2_per_kwh: found 'inf', expected"),
    "word": (
        GOOD.replace("200", "low"),
        ": row 2, column gco2_per_kwh: found 'low', expected a num",
    ),
    "column": (
        GOOD.replace("region", "zone"),
        ": row 1: found columns timestamp, zone, gco2_per_kwh",
    ),
    "empty": (
        f"{HEADER}\n",
        ": found no rows, expected hourly intensity",
    ),
}


@pytest.mark.parametrize("text, expected", BAD.values(), ids=BAD)
def test_bad_files(grid, text, expected):
    assert message(grid(text), ["DE", "SG"]).startswith(expected)


def test_unknown_regions(grid):
    path = grid(GOOD)
    assert message(path, ["DE", "US-PJM"]).endswith(
        "found no US-PJM, expected its intensity; there are: DE, SG; say which it is: "
        "zones.US-PJM = '...' under [intensity]"
    )
    assert "did you mean 'DE'? there are: DE, SG" in message(path, ["de"])
    assert "expected each once" in message(path, ["DE", "DE"])
    assert "(--carbon), or choose of AU-NSW, " in message(TYPICAL_DAY, ["ZZ"])
    assert "no file" in message(path.with_name("none.csv"), ["DE"])


def typical():
    with package_file("typical_day_2023.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return {
        (row["region"], int(row["month"]), int(row["hour_utc"])): float(row["mean_gco2_per_kwh"])
        for row in rows
    }


def test_a_known_utc_hour_reads_the_known_value_in_every_region():
    table = typical()
    regions = sorted({region for region, _, _ in table})
    intensity = read_intensity(TYPICAL_DAY, regions)
    assert intensity.start == pd.Timestamp("2023-01-01T00:00Z")
    assert intensity.g_per_kwh.shape == (8760, len(regions))
    for moment in (datetime(2023, 1, 1, 0), datetime(2023, 6, 15, 21), datetime(2023, 12, 31, 23)):
        hour = int((moment - datetime(2023, 1, 1)).total_seconds()) // 3600
        known = [table[region, moment.month, moment.hour] for region in regions]
        assert intensity.g_per_kwh[hour].tolist() == known


def test_solar_hours_are_clean_in_california_at_its_noon_not_at_utc_noon():
    grid = read_intensity(TYPICAL_DAY, ["US-CISO"]).g_per_kwh.reshape(365, 24)
    assert grid[150, 20] < 0.8 * grid[150, 12]  # 12:00 and 04:00 local standard time


def test_a_span_is_covered_by_whole_hours_in_any_year():
    table = typical()
    span = (datetime(2024, 2, 29, 23, 30), datetime(2024, 3, 1, 1, 1, tzinfo=UTC))
    intensity = read_intensity(TYPICAL_DAY, ["DE"], span=span)
    assert intensity.start == pd.Timestamp("2024-02-29T23:00Z")
    hours = [(2, 23), (3, 0), (3, 1)]
    assert intensity.g_per_kwh[:, 0].tolist() == [table["DE", *hour] for hour in hours]
    with pytest.raises(ValueError, match="span must end after it begins"):
        read_intensity(TYPICAL_DAY, ["DE"], span=span[::-1])
