"""Intensity as its publishers give it: the right number at the right UTC hour, each repair told."""

import gzip
import io
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from jaxroute.config import read_config
from jaxroute.errors import InputError
from jaxroute.grid_inspection import inspect_intensity, is_intensity
from jaxroute.load.carbon import TYPICAL_DAY, read_intensity
from jaxroute.load.files import package_file, sha256
from jaxroute.load.grids import content, detection, generation
from jaxroute.load.grids.zones import aliases
from jaxroute.online_study import without_traces
from jaxroute.report.files import study_file
from jaxroute.report.grid_inspection import inspection_notes, show_intensity_inspection
from jaxroute.study import overridden

NEW = (
    "Datetime (UTC),Country,Zone name,Zone id,Carbon intensity gCO₂eq/kWh (direct),"
    "Carbon intensity gCO₂eq/kWh (Life cycle),Carbon-free energy percentage (CFE%),"
    "Renewable energy percentage (RE%),Data source,Data estimated,Data estimation method\n"
)
OLD = (
    "Datetime (UTC),Country,Zone Name,Zone Id,Carbon Intensity gCO₂eq/kWh (direct),"
    "Carbon Intensity gCO₂eq/kWh (LCA),Low Carbon Percentage,"
    "Renewable Percentage,Data Source,Data Estimated,Data Estimation Method\n"
)
HEADER = "timestamp,region,gco2_per_kwh\n"
SIGNAL = 'to use it: signal = "marginal" under [intensity] in the study file'


def hour(n, day=15):
    return f"2024-01-{day + n // 24}T{n % 24:02d}"


def yearly(values, zone="SG", header=NEW, estimated=()):
    """Direct intensity is a tenth of the life-cycle one."""
    rows = (
        f"{hour(n).replace('T', ' ')}:00:00,X,X,{zone},{'' if v is None else v / 10},"
        f"{'' if v is None else v},1,1,x,{'true' if n in estimated else 'false'},\n"
        for n, v in enumerate(values)
    )
    return header + "".join(rows)


def maps_api(values, zone="DE", key="history", **more):
    rows = [
        {"zone": zone, "carbonIntensity": v, "datetime": f"{hour(n)}:00:00.000Z"} | more
        for n, v in enumerate(values)
    ]
    return json.dumps({"zone": zone, key: rows})


def watttime(values, zone="CAISO_NORTH", minutes=5, **meta):
    rows = [
        {"point_time": f"{hour(n * minutes // 60)}:{n * minutes % 60:02d}:00+00:00", "value": v}
        for n, v in enumerate(values)
    ]
    told = {"region": zone, "signal_type": "co2_moer", "units": "lbs_co2_per_mwh"}
    return json.dumps({"data": rows, "meta": told | meta})


def uk(pairs):
    """Half-hours, each with its actual value and its forecast."""

    def moment(n):
        return f"{hour(n // 2)}:{n % 2 * 30:02d}Z"

    rows = [
        {"from": moment(n), "to": moment(n + 1), "intensity": {"forecast": f, "actual": a}}
        for n, (a, f) in enumerate(pairs)
    ]
    return json.dumps({"data": rows})


def eia(fuels, zone="CISO", suffix="", **more):
    """Values of hours that begin at 0, 1, …: named by their end."""
    rows = [
        {"period": f"{hour(n + 1)}{suffix}", "respondent": zone, "fueltype": fuel, "value": v}
        for fuel, values in fuels.items()
        for n, v in enumerate(values)
    ]
    return json.dumps({"response": {"data": rows} | more})


def series(code, points, *, hours=3, minutes=60, curve="A03", way="in", first=0, unit="MAW"):
    given_points = "".join(
        f"<Point><position>{at}</position><quantity>{value}</quantity></Point>"
        for at, value in points.items()
    )
    return (
        f"<TimeSeries><{way}BiddingZone_Domain.mRID>10YSE-1--------K</{way}BiddingZone_Domain.mRID>"
        f"<quantity_Measure_Unit.name>{unit}</quantity_Measure_Unit.name>"
        f"<curveType>{curve}</curveType><MktPSRType><psrType>{code}</psrType></MktPSRType>"
        f"<Period><timeInterval><start>{hour(first)}:00Z</start>"
        f"<end>{hour(first + hours)}:00Z</end></timeInterval>"
        f"<resolution>PT{minutes}M</resolution>{given_points}</Period></TimeSeries>"
    )


def a75(*parts, head="", kind="A75"):
    return (
        f'<?xml version="1.0"?>{head}<GL_MarketDocument xmlns="urn:x:3:0"><type>{kind}</type>'
        f"{''.join(parts)}</GL_MarketDocument>"
    )


def tidy(values, zone="FR", offset="Z"):
    rows = (f"{hour(n)}:00{offset},{zone},{v}\n" for n, v in enumerate(values) if v is not None)
    return HEADER + "".join(rows)


@pytest.fixture
def put(tmp_path):
    """Writes a file and returns its path."""

    def write(text, name="grid"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def fails(*args, **kwargs):
    with pytest.raises(InputError) as caught:
        read_intensity(*args, **kwargs)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


MIX = {"NG": [100, "50", 0], "SUN": [100, 150, 50]}
MIXED = [(490 + 48) / 2, (490 * 50 + 48 * 150) / 200, 48]
POUND = 0.45359237

GOLDEN = {
    "yearly, life cycle": (yearly([400, 410, 420]), "SG", {}, [400, 410, 420], "CSV, average, lif"),
    "yearly, direct": (yearly([400, 410]), "SG", {"basis": "direct"}, [40, 41], "direct, consumpt"),
    "yearly, old header": (yearly([400], header=OLD), "SG", {}, [400], "Electricity Maps CSV"),
    "yearly, old, direct": (
        yearly([400], header=OLD), "SG", {"basis": "direct"}, [40], "Electricity Maps CSV"
    ),
    "yearly, an empty hour": (
        yearly([400, None, 420]), "SG", {}, [400, 410, 420],
        "1 missing hours interpolated (first at 2024-01-15T01:00Z of SG)",
    ),
    "yearly, estimated": (
        yearly([1, 2, 3], estimated=(0, 2)), "SG", {}, [1, 2, 3], "2 hours that the provider est"
    ),
    "CRLF, byte-order mark, gzip": (
        gzip.compress(yearly([400, 410]).replace("\n", "\r\n").encode("utf-8-sig")),
        "SG", {}, [400, 410], "Electricity Maps CSV",
    ),
    "API, history": (maps_api([500, "510", 520.5]), "DE", {}, [500, 510, 520.5], "Maps API, avera"),
    "API, past range": (maps_api([500], key="data"), "DE", {}, [500], "Electricity Maps API"),
    "API, null": (maps_api([500, None, 520]), "DE", {}, [500, 510, 520], "1 missing hours interpo"),
    "API, direct, estimated": (
        maps_api([5], emissionFactorType="direct", isEstimated=True), "DE", {"basis": "direct"},
        [5], "1 hours that the provider estimated",
    ),
    "API, em_zone": (maps_api([9], zone="US-CAL-CISO"), "US-CISO", {}, [9], "US-CISO: Electricity"),
    "WattTime": (
        watttime([1000] * 6 + [2000] * 6 + [100] * 12), "US-CISO", {"signal": "marginal"},
        [1500 * POUND, 100 * POUND], "v3, marginal, direct, CO2 alone; WattTime's lb/MWh converted",
    ),
    "WattTime, part of an hour, forecast": (
        watttime([1000] * 13, generated_at="2024-01-14T00:00Z"), "US-CISO", {"signal": "marginal"},
        [1000 * POUND] * 2, "1 hours of which only a part is there",
    ),
    "WattTime, average": (
        watttime([10] * 12, signal_type="co2_aoer"), "US-CISO", {}, [10 * POUND], "v3, average"
    ),
    "UK": (uk([(200, 0), (300, 0), (100, 0), (100, 0)]), "GB", {}, [250, 100], "carbonintensity"),
    "UK, forecast": (
        uk([(200, 0), (None, 300), (None, 100), (100, 0)]), "GB", {}, [250, 100],
        "2 half-hours without an actual value, where the forecast is used (first at '2024",
    ),
    "UK, neither": (
        uk([(200, 0), (None, None)]), "GB", {}, [200], "1 hours of which only a part is there"
    ),
    "EIA": (
        eia(MIX), "US-CISO", {}, MIXED, "production-based; hours that EIA names by their end shifte"
    ),
    "EIA, local time": (eia(MIX, suffix="-00:00"), "US-CISO", {}, MIXED, "EIA v2"),
    "EIA, null in one fuel": (
        eia({"NG": [100, None, 300], "WND": [100, 100, 100]}), "US-CISO", {},
        [(490 + 11) / 2, (490 * 2 + 11) / 3, (490 * 3 + 11) / 4],
        "1 hours of a fuel type interpolated (first at NG of CISO)",
    ),
    "EIA, a fuel not yet there at the end": (
        eia({"NG": [100, 100, 100], "COL": [100]}), "US-CISO", {}, [655],
        "2 hours at an end left out, as a fuel type lacks them (first at COL of CISO)",
    ),
    "EIA, a fuel that ends": (
        eia({"NG": [100] * 6, "COL": [100]}), "US-CISO", {}, [655] + [490] * 5,
        "5 hours before or after all of a fuel type's, where it counts as 0 (first at COL of CISO)",
    ),
    "EIA, negative": (
        eia({"SUN": [-3, 10], "NUC": [10, 10]}), "US-CISO", {}, [12, 30],
        "1 negative generation counted as 0 (first at SUN of CISO)",
    ),
    "EIA, storage": (
        eia({"NUC": [10], "BAT": [50], "PS": [50]}), "US-CISO", {}, [12],
        "2 series of storage left out (first at BAT of CISO)",
    ),
    "EIA, assumed": (
        eia({"NUC": [30], "OTH": [10]}), "US-CISO", {}, [(12 * 3 + 700) / 4],
        "25.0% of CISO's generation at an assumed factor",
    ),
    "EIA, a page": (
        eia({"NUC": [30]}, total="7000"), "US-CISO", {}, [12], "a page: 1 of EIA's 7,000 rows"
    ),
    "ENTSO-E, left-out positions repeat": (
        a75(series("B04", {1: 100, 3: 50}), series("B14", {1: 100})), "SE", {},
        [251, 251, (490 + 12 * 2) / 3], "ENTSO-E A75, average, life-cycle by fuel type, production",
    ),
    "ENTSO-E, quarters of an hour": (
        a75(series("B04", {1: 100, 2: 0, 5: 20}, minutes=15, hours=2),
            series("B19", {1: 25, 2: 25}, hours=2)),
        "SE", {}, [(490 + 11) / 2, (490 * 20 + 11 * 25) / 45], "ENTSO-E A75",
    ),
    "ENTSO-E, A01 with a gap": (
        a75(series("B04", {1: 1, 3: 1}, curve="A01"), series("B14", {1: 1, 2: 1, 3: 1})), "SE", {},
        [251] * 3, "1 hours of a fuel type interpolated (first at B04 of 10YSE-1--------K)",
    ),
    "ENTSO-E, a quarter missing": (
        a75(series("B14", {1: 1, 2: 1, 4: 1}, hours=1, minutes=15, curve="A01")), "SE", {}, [12],
        "1 hours of which only a part is there (first at B14 of 10YSE-1--------K)",
    ),
    "ENTSO-E, pumped storage apart": (
        a75(series("B14", {1: 1}), series("B10", {1: 9}), series("B10", {1: 9}, way="out")), "SE",
        {}, [12] * 3,
        "1 series of storage left out (first at B10 of 10YSE-1--------K); 1 series of what a type "
        "consumes left out (first at B10 of 10YSE-1--------K)",
    ),
    "ENTSO-E, resolution changes": (
        a75(series("B14", {1: 1}, hours=1), series("B14", {1: 1}, hours=1, first=1, minutes=15)),
        "SE", {}, [12] * 2, "ENTSO-E A75",
    ),
    "ENTSO-E, prefixed names, gzip": (
        gzip.compress(
            a75(series("B14", {1: 1}))
            .replace("<T", "<q:T").replace("</T", "</q:T").replace("urn:x", "urn:y").encode()
        ), "SE", {}, [12] * 3, "ENTSO-E A75",
    ),
    "ENTSO-E, a named zone": (
        a75(series("B14", {1: 1})), "FR", {"zones": {"FR": "10YSE-1--------K"}}, [12] * 3, "FR: ENT"
    ),
    "tidy": (tidy([50, 60]), "FR", {}, [50, 60], "FR: tidy table, average or marginal: as its a"),
    "tidy, marginal": (tidy([50]), "FR", {"signal": "marginal"}, [50], "(taken as marginal)"),
    "tidy, without offset": (
        tidy([50, 60], offset=":00"), "FR", {}, [50, 60], "2 times without an offset taken as UTC"
    ),
    "tidy, gap of three": (
        tidy([50, None, None, None, 90]), "FR", {}, [50, 60, 70, 80, 90],
        "3 missing hours interpolated (first at 2024-01-15T01:00Z of FR)",
    ),
    "tidy, half an hour off": (
        HEADER + "".join(f"{hour(n)}:00+05:30,FR,{v}\n" for n, v in enumerate((10, 20, 40), 6)),
        "FR", {}, [10, 15, 30, 40], "2 hours of which only a part is there (first at FR)",
    ),
    "tidy, clock put back": (
        HEADER + "2023-10-29T02:30:00+02:00,FR,1\n2023-10-29T02:00:00+02:00,FR,3\n"
        "2023-10-29T02:00:00+01:00,FR,4\n2023-10-29T02:30:00+01:00,FR,6\n",
        "FR", {}, [2, 5], "2 hours from 2023-10-29T00:00Z",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text, region, options, expected, told", GOLDEN.values(), ids=GOLDEN)
def test_each_source_and_irregularity(put, text, region, options, expected, told):
    path = put(text)
    read = read_intensity(path, [region], **options)
    np.testing.assert_allclose(read.g_per_kwh[:, 0], expected, rtol=1e-12)
    assert told in read.note and len(read.note.splitlines()) == 1
    assert is_intensity(path)


SOURCES = {
    "SG": yearly(range(300, 324)),
    "DE": maps_api(range(400, 424)),
    "GB": uk([(100 + n // 2, 0) for n in range(48)]),
    "US-CISO": eia({"NG": range(24), "NUC": range(24, 0, -1)}),
    "SE": a75(series("B04", {n + 1: n for n in range(24)}, hours=24),
              series("B14", {n + 1: 24 - n for n in range(24)}, hours=24)),
    "FR": HEADER + "".join(f"{hour(n)}:00+00:00,FR,{50 + n}\n" for n in range(24)),
    "KR": HEADER + "".join(f"{hour(n + 9)}:00+09:00,KR,{50 + n}\n" for n in range(24)),
}  # fmt: skip


def test_a_known_utc_hour_reads_the_known_value_in_every_region(put, tmp_path):
    for region, text in SOURCES.items():
        put(text, f"all/{region}")
    read = read_intensity(tmp_path / "all", list(SOURCES))
    assert read.start == pd.Timestamp("2024-01-15T00:00Z")
    assert len(read.g_per_kwh) == 24
    for n in (0, 5, 23):
        mix = (490 * n + 12 * (24 - n)) / 24
        np.testing.assert_allclose(
            read.g_per_kwh[n], [300 + n, 400 + n, 100 + n, mix, mix, 50 + n, 50 + n]
        )
    assert "regions differ in which emissions are counted" in read.note
    assert read.note.startswith("all: 24 hours") and "US-CISO: EIA v2" in read.note


def test_files_of_a_zone_join_and_regions_share_the_hours_that_all_have(put):
    one = put(yearly([1, 2], zone="FR"), "a")
    two = put(yearly([0] * 3 + [4, 5], zone="FR").replace(",0.0,0,", ",,,"), "b")
    other = put(tidy([9] * 4, zone="DE"), "c")
    read = read_intensity([two, one, other], ["DE", "FR"])
    assert read.g_per_kwh.tolist() == [[9, 1], [9, 2], [9, 3], [9, 4]]
    assert "1 hours left out that other regions lack (first at FR)" in read.note
    assert "DE: tidy table" in read.note and "FR: Electricity Maps CSV" in read.note


def test_what_is_there_again_with_the_same_value_counts_once(put):
    again = tidy([1, 2]) + tidy([1, 2])[len(HEADER) :]
    read = read_intensity(put(again, "again"), ["FR"])
    assert read.g_per_kwh.tolist() == [[1], [2]]
    same = "samples that are there again, with the same value, left out (first at 2024-01-15T0"
    assert f"2 {same}0:00Z)" in read.note
    pages = [put(eia({"NG": [100, 100]}), "a"), put(eia({"NG": [100, 100, 50]}), "b")]
    read = read_intensity(pages, ["US-CISO"])
    assert read.g_per_kwh.tolist() == [[490]] * 3 and f"2 {same}0:00Z of NG of CISO)" in read.note


@pytest.mark.parametrize(
    "text, hours, told",
    [
        (maps_api([1, 2], key="forecast"), 2, "a forecast of DE"),
        (json.dumps(json.loads(maps_api([1]))["history"][0]), 1, "DE: Electricity Maps API"),
    ],
    ids=["forecast", "latest"],
)
def test_other_answers_of_electricity_maps(put, text, hours, told):
    path = put(text)
    assert is_intensity(path)
    read = read_intensity(path, ["DE"])
    assert read.g_per_kwh[:, 0].tolist() == [1, 2][:hours] and told in read.note


def test_prose_in_a_directory_is_left_out_and_said(put):
    folder = put(tidy([1]), "all/fr.csv").parent
    put("About the data.", "all/README.txt")
    put("", "all/.hidden")
    left = "1 files of a directory that are no data, by their names, left out (first at README.txt)"
    assert left in read_intensity(folder, ["FR"]).note
    assert is_intensity(folder) and left in inspect_intensity(folder).notes


def test_pages_of_generation_join_before_the_average(put):
    one, two = put(eia({"NG": [100]}), "a"), put(eia({"NUC": [100]}), "b")
    assert read_intensity([one, two], ["US-CISO"]).g_per_kwh.tolist() == [[251]]


TOGETHER = {
    "twice": ([tidy([1, 2]), tidy([3])], ["FR"], "found 2024-01-15T00:00Z of FR, expected each ti"),
    "half-hours twice": (
        [uk([(1, 1)] * 3), uk([(1, 1)] * 2 + [(2, 2)])], ["GB"],
        "found 2024-01-15T01:00Z of GB, expected each time once: ",
    ),
    "two sources": ([tidy([1]), yearly([1], zone="FR")], ["FR"], "expected it from one source"),
    "two names": (
        [yearly([1], zone="US-CAL-CISO"), eia({"NG": [1]})], ["US-CISO"],
        "found US-CISO as US-CAL-CISO and CISO, expected one of them",
    ),
    "mixed": (
        [yearly([1]), watttime([1] * 12)], ["SG", "US-CISO"],
        "found marginal intensity of CAISO_NORTH, expected average intensity, as that of SG",
    ),
    "none in common": (
        [tidy([1]), tidy([None, 1], zone="DE")], ["DE", "FR"], "found none in common: DE 2024-01-15"
    ),
    "no zone": ([tidy([1])], ["SE"], "found no SE, expected its intensity; there are: FR; say whi"),
    "a README": ([tidy([1]), "# Read me\n"], ["FR"], "row 1: found columns # Read me, expected a "),
}  # fmt: skip


@pytest.mark.parametrize("texts, regions, expected", TOGETHER.values(), ids=TOGETHER)
def test_files_that_do_not_go_together(put, texts, regions, expected):
    message = fails([put(text, f"part{n}") for n, text in enumerate(texts)], regions)
    assert expected in message and "part" in message


def nested(depth):
    return '{"data":' * depth + "1" + "}" * depth


BAD = {
    "WattTime, marginal": (
        watttime([1] * 12),
        f"found marginal intensity (WattTime v3), expected average intensity; {SIGNAL}",
    ),
    "WattTime, units": (watttime([1], units="percent"), "meta.units: found 'percent', expected 'l"),
    "WattTime, signal": (watttime([1], signal_type="health_damage"), "meta.signal_type: found 'he"),
    "WattTime, region": (watttime([1], zone=7), "meta.region: found 7, expected the name of a reg"),
    "WattTime, no rows": (
        watttime([]), "data: found an empty list, expected a list of hours"
    ),
    "WattTime, text": (watttime(["low"]), "data[0].value: found 'low', expected a number from 0 t"),
    "WattTime, twice": (
        watttime([1, 2]).replace(":05:00", ":00:00"),
        "data[1].point_time: found 2024-01-15T00:00Z once more, expected each time of a zone once",
    ),
    "yearly, no column": (
        yearly([1]).replace("(Life cycle)", "(x)"),
        "row 1: found columns Datetime (UTC), Country, Zone name",
    ),
    "yearly, negative": (yearly([-5]), "row 2, column Carbon intensity gCO₂eq/kWh (Life cycle): f"),
    "yearly, gap": (
        yearly([1, None, None, None, None, 1]),
        "found no intensity of SG from 2024-01-15T01:00Z to 2024-01-15T05:00Z (4 hours), "
        "expected at most 3 missing hours in a row; fill the gap",
    ),
    "yearly, all empty": (yearly([None]), "found no hour of SG with a value, expected its intensi"),
    "yearly, days": (
        NEW + "".join(f"2024-01-{d} 00:00:00,X,X,SG,1,2,1,1,x,false,\n" for d in (15, 16, 17)),
        "(23 hours, and 1 more such gaps)",
    ),
    "API, other factors": (
        maps_api([1], emissionFactorType="direct"),
        "history[0].emissionFactorType: found 'direct', expected 'lifecycle'; ask for it, basis = ",
    ),
    "API, no zone": (maps_api([1], zone=None), "history[0].zone: found nothing, expected the name"),
    "API, a list": ('[{"carbonIntensity": 3}]', "in place of what has history, expected a JSON ob"),
    "API, no time": (
        maps_api([1]).replace('"datetime"', '"time"'), "history[0].datetime: found nothing, expecte"
    ),
    "API, boolean": (maps_api([True]), "history[0].carbonIntensity: found true, expected a number"),
    "API, huge": (maps_api([10**400]), "history[0].carbonIntensity: found 1000000000"),
    "UK, no hour": (uk([(1, 1)]).replace("00:30Z", "05:00Z"), "data[0].to: found '2024-01-15T05:0"),
    "UK, overlap": (
        uk([(1, 1)] * 3).replace('"from": "2024-01-15T01:00Z"', '"from": "2024-01-15T00:45Z"'),
        "data[2].from: found a beginning at 2024-01-15T00:45Z, inside the time before",
    ),
    "UK, no values": (
        uk([(1, 1)]).replace('{"forecast": 1, "actual": 1}', '[], "actual": {"intensity": {}}'),
        "data[0].intensity: found [], expected an object with `actual` and `forecast`",
    ),
    "EIA, unknown fuel": (eia({"XX": [1]}), "response.data[0].fueltype: found 'XX', expected a fu"),
    "EIA, daily": (
        eia({"NG": [1]}).replace("T01", ""), "response.data[0].period: found '2024-01-15', expected"
    ),
    "EIA, unit": (
        eia({"NG": [1]}).replace('"value"', '"value-units": "thousand", "value"'),
        "response.data[0].value-units: found 'thousand', expected 'megawatthours'",
    ),
    "EIA, gap of a fuel": (
        eia({"NG": [1] + [None] * 4 + [1], "NUC": [1] * 6}),
        "found no intensity of US-CISO from 2024-01-15T01:00Z to 2024-01-15T05:00Z (4 hours), "
        "expected at most 3 missing hours in a row of every fuel type; fill the gap",
    ),
    "ENTSO-E, no data": (
        "<Acknowledgement_MarketDocument/>",
        "found an answer of ENTSO-E (<Acknowledgement_MarketDocument>), expected <GL_MarketDocumen",
    ),
    "ENTSO-E, its reason": (
        "<Acknowledgement_MarketDocument><Reason><code>999</code><text>No matching data</text>",
        "found ENTSO-E's answer 'No matching data' (<Acknowledgement_MarketDocument>), expected <G",
    ),
    "XML, another": ("<rss/>", "found a document <rss>, expected <GL_MarketDocument> of ENTSO-E"),
    "XML, a page": ("<!doctype html><p>", "found a page of HTML, expected intensity of "),
    "JSON, an error": (
        '{"error": {"code": "API_KEY_MISSING"}}',
        """found the service's answer {"code": "API_KEY_MISSING"}, expected an answer of E""",
    ),
    "ENTSO-E, load": (a75(kind="A65"), "type: found 'A65', expected 'A75', actual generation per"),
    "ENTSO-E, unit": (a75(series("B14", {1: 1}, unit="MWH")), "TimeSeries 1, unit: found 'MWH', e"),
    "ENTSO-E, type": (a75(series("B99", {1: 1})), "TimeSeries 1, psrType: found 'B99', expected a"),
    "ENTSO-E, curve": (a75(series("B14", {1: 1}, curve="A02")), "Period 1, curveType: found 'A02'"),
    "ENTSO-E, beyond": (a75(series("B14", {4: 1})), "Point 1, position: found '4', expected 1 to "),
    "ENTSO-E, again": (
        a75(series("B14", {1: 1, 2: 1}).replace(">2<", ">1<")),
        "TimeSeries 1, Period 1, Point 2, position: found 1 once more, expected each once",
    ),
    "ENTSO-E, quantity": (a75(series("B14", {1: "n/e"})), "Point 1, quantity: found 'n/e', expect"),
    "ENTSO-E, resolution": (
        a75(series("B14", {1: 1}, minutes=7)), "Period 1, resolution: found 'PT7M', expected PT60M,"
    ),
    "ENTSO-E, backwards": (a75(series("B14", {1: 1}, hours=-1, first=2)), "expected a whole numbe"),
    "ENTSO-E, twice": (
        a75(series("B14", {1: 1}), series("B14", {1: 2})),
        "B14 of 10YSE-1--------K: found 2024-01-15T00:00Z once more",
    ),
    "ENTSO-E, no zone": (
        a75(series("B14", {1: 1}).replace("10YSE-1--------K", "")), "TimeSeries 1: found no bidding"
    ),
    "ENTSO-E, too many points": (
        a75(series("B14", {1: 1}, minutes=1).replace("<end>2024", "<end>2190")), "8,388,608 points"
    ),
    "XML, broken off": (a75(series("B14", {1: 1}))[:-9], "found a syntax error ("),
    "XML, entities": (
        a75(series("&lol;", {1: 1}),
            head='<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY lol "&a;&a;&a;&a;">]>'),
        "found a document type (DOCTYPE), expected XML without one",
    ),
    "XML, external": (
        a75(head='<!DOCTYPE x SYSTEM "file:///etc/passwd">'), "found a document type (DOCTYPE)"
    ),
    "XML, deep": (a75("<a>" * 99), "found elements too deep in one another"),
    "JSON, broken off": (maps_api([1])[:-9], "line 1, column "),
    "JSON, deep": (nested(100_000), "found maximum recursion depth exceeded"),
    "JSON, unknown": ('{"hours": [1, 2]}', "found JSON of no known source, expected an answer of "),
    "tidy, seconds": (tidy([1], offset=":01Z"), "row 2, column timestamp: found '2024-01-15T00:00"),
    "gzip, damaged": (gzip.compress(tidy([1]).encode())[:10] + b"xxxxxxxx", "found Error"),
    "tidy, damaged Parquet": ("PAR1xxxxPAR1", "expected a readable file"),
    "nothing": ("", "row 1: found columns none, expected a column timestamp"),
}  # fmt: skip


REGIONS = {
    "WattTime": "US-CISO", "yearly": "SG", "API": "DE", "UK": "GB", "EIA": "US-CISO", "tidy": "FR"
}  # fmt: skip
"""Of a case, by its first word; of any other Sweden, which none of their files names."""


@pytest.mark.parametrize("case", BAD)
def test_bad_files(put, case):
    (text, expected), region = BAD[case], REGIONS.get(case.split(",")[0], "SE")
    path = put(text)
    message = fails(path, [region])
    assert message.startswith(str(path)) and expected in message


def test_what_unzips_to_more_than_is_read_is_refused(put, monkeypatch):
    monkeypatch.setattr(content, "LARGEST_JSON", 50)
    assert "found more than 50 characters" in fails(put(maps_api([1])), ["DE"])
    monkeypatch.setattr(content, "LARGEST", 2**16)
    for begin in (HEADER, a75()[:-30]):
        bomb = gzip.compress(begin.encode() + b"\n" * 2**21)
        assert len(bomb) < 2**13
        assert "found more than 65,536 characters" in fails(put(bomb), ["DE"])
    monkeypatch.setattr(detection, "MOST_ROWS", 1)
    table = pd.DataFrame({"timestamp": [1e9, 1e9 + 3600], "region": "FR", "gco2_per_kwh": 1.0})
    table.to_parquet(path := put(""), index=False)
    assert "found more than 1 rows, expected a smaller table" in fails(path, ["FR"])


SHAPES = (*SOURCES.values(), watttime([1000] * 24))


@settings(max_examples=100)
@given(
    shape=st.sampled_from(SHAPES),
    cuts=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 9), st.binary(max_size=6)), min_size=1, max_size=4
    ),
    packed=st.booleans(),
)
def test_damaged_bytes_are_read_or_refused(tmp_path_factory, shape, cuts, packed):
    data = shape.encode()
    for where, length, fresh in cuts:
        at = int(where * len(data))
        data = data[:at] + fresh + data[at + length :]
    path = tmp_path_factory.getbasetemp() / "fuzz"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    is_intensity(path)
    try:
        told = inspect_intensity(path)
        zone = told.table["zone"][0]
        read = read_intensity(
            path, ["DE"], zones={"DE": zone}, signal=told.table["signal"][0] or "average"
        )
    except InputError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert np.isfinite(read.g_per_kwh).all() and (read.g_per_kwh >= 0).all()


def test_what_is_no_intensity(put, tmp_path):
    for text in (
        "session_id,turn\n",
        '{"id": "a", "text": "\\"point_time\\": 3"}',
        '{"intensity": 3, "prompt": "x"}',
        '{"error": "x"}\n{"id": "a"}',
        "session_id,timestamp,region\n",
        "timestamp,tokens\n",
        "",
        "\0",
    ):
        assert not is_intensity(put(text))
    for text in ("<html>", '{"error": "x"}', "timestamp,region\n"):  # its reader says what is wrong
        assert is_intensity(put(text))
    assert not is_intensity(put("PAR1xxxx")) and not is_intensity(tmp_path / "none")
    frame = pd.DataFrame({"timestamp": ["2024-01-15"], "region": "FR", "gco2_per_kwh": 1.0})
    frame.to_parquet(tmp_path / "tidy.parquet")
    assert is_intensity(tmp_path / "tidy.parquet")
    frame[["region"]].to_parquet(tmp_path / "other.parquet")
    assert not is_intensity(tmp_path / "other.parquet")


def test_the_builtin_is_average_and_alone(put):
    assert "found average intensity, expected marginal" in fails(
        TYPICAL_DAY, ["DE"], signal="marginal"
    )
    assert "a bundled table beside files" in fails([TYPICAL_DAY, put(tidy([1]))], ["DE"])
    assert "an empty list" in fails([], ["DE"])
    with pytest.raises(ValueError, match="expected a basis and a signal"):
        read_intensity(TYPICAL_DAY, ["DE"], basis="LCA")


def test_every_factor_has_a_source_and_every_alias_a_region():
    factors = pd.read_csv(package_file("emission_factors.csv"), keep_default_na=False)
    assert (factors["source"] != "").all()
    assert not factors.duplicated(["scheme", "code"]).any()
    same = factors[factors["g_per_kwh"] != ""].groupby("technology")["g_per_kwh"].nunique()
    assert (same == 1).all()
    assert generation.factors("eia")["COL"].g_per_kwh == 820
    assert np.isnan(generation.factors("entsoe")["B10"].g_per_kwh)
    zones = pd.read_csv(package_file("zones.csv"), keep_default_na=False)
    regions = pd.read_csv(package_file("regions.csv"), keep_default_na=False)["region"]
    assert zones["region"].isin(regions).all() and (zones["source"] != "").all()
    every = [name for region in regions for name in aliases(region)]
    assert len(every) == len(set(every))


STUDY = """
[fleet]
regions = ["FR", "DE"]
[intensity]
path = ["grids", "de.csv"]
zones = { FR = "MY_FR" }
[[datasets]]
path = "trace.csv"
"""


@pytest.fixture
def study(put):
    put(STUDY, "study.toml")
    put("session_id,turn,arrival_s,input_tokens,output_tokens\na,0,0,10,10\n", "trace.csv")
    put(tidy([5] * 24, zone="MY_FR"), "grids/fr.csv")
    return put, put(maps_api([7] * 24), "de.csv").parent


def test_a_study_reads_lists_and_directories_and_records_every_file(study):
    _, folder = study
    loaded = without_traces(read_config(folder / "study.toml"))
    assert loaded.config.intensity.path == (str(folder / "grids"), str(folder / "de.csv"))
    np.testing.assert_array_equal(loaded.world.intensity_g_per_kwh, np.tile([5, 7], (24, 1)))
    for file in (folder / "grids" / "fr.csv", folder / "de.csv", package_file("zones.csv")):
        name = file.name if file.name == "zones.csv" else str(file)
        assert loaded.inputs[name] == sha256(file)
    assert "intensity: grids, de.csv: 24 hours" in loaded.notes[0]
    again = folder / "again" / "study.toml"
    again.parent.mkdir()
    again.write_text(study_file(loaded, "mine", {"preset": "carbon_router"}))
    assert read_config(again).intensity == loaded.config.intensity


def test_options_in_place_of_a_study_s_files(study):
    _, folder = study
    config = read_config(folder / "study.toml")
    for carbon in (["a.csv", "b.csv"], ("a.csv", "b.csv")):
        several = overridden(config, carbon=carbon)
        assert several.intensity.path == ("a.csv", "b.csv")
        assert '"path":["a.csv","b.csv"]' in several.model_dump_json()  # warns of what is no tuple
    assert overridden(config, carbon=folder / "de.csv").intensity.path == str(folder / "de.csv")
    assert overridden(config, carbon="a.csv").intensity.zones == {"FR": "MY_FR"}
    assert overridden(config, carbon=[]).intensity == config.intensity


@pytest.mark.parametrize(
    "text, expected",
    {
        "path = []": "intensity.path: found an empty list, expected at least one entry",
        "path = 3": "intensity.path: found 3, expected a path, or a list of paths",
        "path = ['a', '']": "intensity.path[1]: found '', expected a text that is not empty",
        "path = ['a', 3]": "intensity.path[1]: found 3, expected a text",
        "path = ['a', 'a']": "intensity.path[1]: found '",
        "basis = 'LCA'": "intensity.basis: found 'LCA', expected 'lifecycle' or 'direct'",
        "signal = 'both'": "intensity.signal: found 'both', expected 'average' or 'marginal'",
        "zones = { DEE = 'x' }": "intensity.zones.DEE: found 'DEE', expected a region; did you mea",
        "zones = { DE = '' }": "intensity.zones.DE: found '', expected a text that is not empty",
    }.items(),
)
def test_faults_of_the_section(put, text, expected):
    with pytest.raises(InputError) as caught:
        read_config(put(f"[intensity]\n{text}\n", "study.toml"))
    assert expected in str(caught.value)


def test_an_inspection_tells_what_is_there_and_what_is_not(put):
    path = put(
        yearly([100, 300] * 12 + [None] * 5 + [50], zone="SG") + yearly([9], "ZZ")[len(NEW) :]
    )
    told = inspect_intensity(path, {"FR": "ZZ"})
    row, other = told.table.to_dict("records")
    assert (row["zone"], row["region"], other["region"]) == ("SG", "SG", "FR")
    assert (row["format"], row["signal"]) == ("Electricity Maps CSV", "average")
    assert row["start"] == pd.Timestamp("2024-01-15T00:00Z")
    assert row["end"] == pd.Timestamp("2024-01-16T06:00Z")
    assert (row["hours"], row["missing_hours"], row["longest_gap_hours"]) == (25, 5, 5)
    assert (row["min"], row["max"], row["mean"]) == (50, 300, 4850 / 25)
    assert row["longest_gap_start"] == pd.Timestamp("2024-01-16T00:00Z")
    assert "SG (5 h from 2024-01-16 00:00)" in " ".join(inspection_notes(told))
    assert row["daily_swing"] == 200 and np.isnan(other["daily_swing"])


@pytest.mark.parametrize("width", [200, 70])
def test_an_inspection_on_a_terminal(put, width):
    marginal, other = put(watttime([1000] * 24, zone="[HQ]"), "a"), put(tidy([1]), "b")
    out = Console(width=width, record=True, file=io.StringIO())
    show_intensity_inspection(inspect_intensity([marginal, other]), out)
    rendered = out.export_text()
    text = " ".join(rendered.split())
    assert "/b:tidytable" in "".join(rendered.split())
    for word in ("[HQ]", "none", "453.6", "WattTime v3, marginal", "zones.REGION", "lb/MWh"):
        assert word in text
    assert ("longest gap h" in text) == (width == 200)


def test_the_builtin_can_be_inspected():
    table = inspect_intensity(TYPICAL_DAY).table.set_index("zone")
    assert (table["hours"] == 8760).all() and table["daily_swing"]["US-CISO"] > 100
