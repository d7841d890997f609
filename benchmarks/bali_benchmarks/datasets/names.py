"""Names of columns and classes, in the order of the published files, which mostly carry none themselves."""

from __future__ import annotations

YACHT = (
    "longitudinal_position_of_buoyancy",
    "prismatic_coefficient",
    "length_displacement_ratio",
    "beam_draught_ratio",
    "length_beam_ratio",
    "froude_number",
)
CONCRETE = (
    "cement",
    "blast_furnace_slag",
    "fly_ash",
    "water",
    "superplasticizer",
    "coarse_aggregate",
    "fine_aggregate",
    "age_days",
)
ENERGY = (
    "relative_compactness",
    "surface_area",
    "wall_area",
    "roof_area",
    "overall_height",
    "orientation",
    "glazing_area",
    "glazing_area_distribution",
)
REDWINE = (
    "fixed_acidity",
    "volatile_acidity",
    "citric_acid",
    "residual_sugar",
    "chlorides",
    "free_sulfur_dioxide",
    "total_sulfur_dioxide",
    "density",
    "pH",
    "sulphates",
    "alcohol",
)
KIN8NM = tuple(f"theta{joint}" for joint in range(1, 9))
POWERPLANT = ("AT_temperature", "V_exhaust_vacuum", "AP_ambient_pressure", "RH_relative_humidity")
PROTEIN = tuple(f"F{number}" for number in range(1, 10))
_SPAM_WORDS = (
    "make address all 3d our over remove internet order mail receive will people report addresses free business email "
    "you credit your font 000 money hp hpl george 650 lab labs telnet 857 data 415 85 technology 1999 parts pm direct "
    "cs meeting original project re edu table conference"
)
SPAM = (
    *(f"word_freq_{word}" for word in _SPAM_WORDS.split()),
    *(f"char_freq_{character}" for character in ";([!$#"),
    *(f"capital_run_length_{statistic}" for statistic in ("average", "longest", "total")),
)
TELESCOPE = ("fLength", "fWidth", "fSize", "fConc", "fConc1", "fAsym", "fM3Long", "fM3Trans", "fAlpha", "fDist")
DIABETES = (
    "HighBP",
    "HighChol",
    "CholCheck",
    "BMI",
    "Smoker",
    "Stroke",
    "HeartDiseaseorAttack",
    "PhysActivity",
    "Fruits",
    "Veggies",
    "HvyAlcoholConsump",
    "AnyHealthcare",
    "NoDocbcCost",
    "GenHlth",
    "MentHlth",
    "PhysHlth",
    "DiffWalk",
    "Sex",
    "Age",
    "Education",
    "Income",
)
PIXELS = tuple(f"pixel_{row}_{column}" for row in range(28) for column in range(28))
DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
