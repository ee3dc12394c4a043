"""One small real job for each library and tool of the sandbox image; test_image.py has them done.

Python jobs run one after the other in one folder: a document that one has written may be another's to read. What is wrong is an
assertion that fails.
"""

TABLE = [["city", "visits"], ["Lisbon", "12"], ["Osaka", "7"]]

LIBRARIES = {
    "numpy": """
import numpy as np
assert np.allclose(np.linalg.solve([[3, 1], [1, 2]], [9, 8]), [2, 3])
assert np.random.default_rng(7).normal(size=1000).std() < 1.2
""",
    "pandas": """
import pandas as pd
days = pd.date_range("2026-01-01", periods=60, freq="D", tz="Europe/Lisbon")
sales = pd.DataFrame({"day": days, "city": ["a", "b"] * 30, "value": range(60)})
assert sales.groupby("city")["value"].sum().to_dict() == {"a": 870, "b": 900}
assert list(sales.set_index("day")["value"].resample("MS").count()) == [31, 28, 1]
sales.to_csv("sales.csv", index=False)
assert pd.read_csv("sales.csv").shape == (60, 3)
assert pd.DataFrame({"x": [1]}).merge(pd.DataFrame({"x": [1], "y": [2]}))["y"][0] == 2
""",
    "scipy": """
import numpy as np
from scipy import integrate, optimize, stats
x = np.linspace(0, 4, 50)
(a, b), _ = optimize.curve_fit(lambda x, a, b: a * np.exp(-b * x), x, 2.5 * np.exp(-1.3 * x))
assert abs(a - 2.5) < 1e-6 and abs(b - 1.3) < 1e-6
assert abs(integrate.quad(np.sin, 0, np.pi)[0] - 2) < 1e-9 and abs(stats.norm.cdf(1.96) - 0.975) < 1e-3
""",
    "scikit-learn": """
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score
from sklearn.datasets import load_iris
x, y = load_iris(return_X_y=True)
assert cross_val_score(RandomForestClassifier(20, random_state=0), x, y, cv=3).mean() > 0.9
""",
    "statsmodels": """
import numpy as np, pandas as pd, statsmodels.formula.api as smf
from statsmodels.tsa.arima.model import ARIMA
x = np.arange(40.0)
fit = smf.ols("y ~ x", pd.DataFrame({"x": x, "y": 3 * x + 2 + np.sin(x)})).fit()
assert abs(fit.params["x"] - 3) < 0.05 and "R-squared" in fit.summary().as_text()
assert ARIMA(np.sin(x), order=(1, 0, 0)).fit().forecast(2).shape == (2,)
""",
    "matplotlib": """
import warnings; warnings.simplefilter("error", UserWarning)
import logging, time
began = time.monotonic()
import matplotlib.pyplot as plt
figure, axes = plt.subplots(figsize=(4, 3), dpi=100)
axes.bar(["Ünï", "Ελλάδα", "Москва", "東京", "北京", "서울"], [3, 1, 4, 1, 5, 9])
axes.set_title("charts \\N{SNOWMAN} $x^2$")
figure.savefig("chart.png"); figure.savefig("chart.svg"); figure.savefig("chart.pdf")
from PIL import Image
picture = Image.open("chart.png").convert("RGB")
assert picture.size == (400, 300) and len(picture.getcolors(400 * 300)) > 50
from pathlib import Path
assert not list((Path.home() / ".cache/matplotlib").glob("fontlist*")), "the list of fonts was made anew"
""",
    "seaborn": """
import numpy as np, pandas as pd, seaborn as sns
import matplotlib.pyplot as plt
frame = pd.DataFrame({"x": range(20), "y": np.arange(20) ** 2, "kind": ["a", "b"] * 10})
sns.heatmap(np.arange(12).reshape(3, 4), annot=True); plt.savefig("heat.png"); plt.close()
sns.lmplot(frame, x="x", y="y", hue="kind").savefig("fit.png")
from PIL import Image
assert len(Image.open("heat.png").convert("RGB").getcolors(1 << 20)) > 50
""",
    "pyarrow": """
import pandas as pd, pyarrow as pa, pyarrow.parquet as pq, pyarrow.compute as pc
frame = pd.DataFrame({"a": [1, 2, 3], "when": pd.to_datetime(["2026-01-01"] * 3, utc=True), "s": ["x", None, "ü"]})
for codec in ("snappy", "zstd"):
    frame.to_parquet("t.parquet", compression=codec)
    pd.testing.assert_frame_equal(pd.read_parquet("t.parquet"), frame, check_dtype=False)
assert pc.sum(pq.read_table("t.parquet")["a"]).as_py() == 6
""",
    "openpyxl": """
import openpyxl, pandas as pd
book = openpyxl.Workbook()
book.active.append(["n", "square"])
for n in range(5): book.active.append([n, f"=A{n + 2}^2"])
book.save("book.xlsx")
assert openpyxl.load_workbook("book.xlsx").active["B4"].value == "=A4^2"
pd.DataFrame({"a": [1, 2]}).to_excel("frame.xlsx", index=False)
assert pd.read_excel("frame.xlsx")["a"].sum() == 3
""",
    "xlsxwriter": """
import openpyxl, xlsxwriter
with xlsxwriter.Workbook("chart.xlsx") as book:
    sheet = book.add_worksheet("data")
    sheet.write_column("A1", [1, 4, 9])
    chart = book.add_chart({"type": "line"})
    chart.add_series({"values": "=data!$A$1:$A$3"})
    sheet.insert_chart("C1", chart)
sheet = openpyxl.load_workbook("chart.xlsx")["data"]
assert sheet["A3"].value == 9 and len(sheet._charts) == 1
""",
    "xlrd": """
import struct, xlrd
record = lambda kind, data=b"": struct.pack("<HH", kind, len(data)) + data
cell = record(3, struct.pack("<HH3xd", 0, 0, 42.5))
book = xlrd.open_workbook(file_contents=record(9, struct.pack("<HH", 2, 16)) + cell + record(10))
assert book.sheet_by_index(0).cell_value(0, 0) == 42.5
""",
    "pillow": """
from PIL import Image, ImageDraw, ImageFont
picture = Image.new("RGB", (200, 100), "navy")
ImageDraw.Draw(picture).text((10, 10), "text", fill="white", font=ImageFont.truetype("DejaVuSans.ttf", 40))
for name in ("p.png", "p.jpg", "p.webp", "p.tiff", "p.gif"):
    picture.resize((100, 50)).save(name)
    assert Image.open(name).size == (100, 50), name
""",
    "python-pptx": """
from pptx import Presentation
from pptx.util import Inches
from PIL import Image
Image.new("RGB", (20, 20), "red").save("red.png")
show = Presentation()
slide = show.slides.add_slide(show.slide_layouts[1])
slide.shapes.title.text = "Quarter"
slide.shapes.add_picture("red.png", Inches(1), Inches(3))
show.save("show.pptx")
again = Presentation("show.pptx").slides[0].shapes
assert again.title.text == "Quarter" and any(shape.shape_type == 13 for shape in again)
""",
    "python-docx": """
from docx import Document
text = Document()
text.add_heading("Report", 1)
text.add_table(rows=1, cols=2).rows[0].cells[1].text = "cell"
text.save("report.docx")
again = Document("report.docx")
assert again.paragraphs[0].text == "Report" and again.tables[0].cell(0, 1).text == "cell"
""",
    "reportlab": f"""
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.platypus import SimpleDocTemplate, Table, Paragraph
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.graphics import renderPM
from reportlab.graphics.shapes import Drawing, Rect
table = Table({TABLE!r}, style=[("GRID", (0, 0), (-1, -1), 1, colors.black)])
SimpleDocTemplate("table.pdf", pagesize=A4).build([Paragraph("Visits", getSampleStyleSheet()["Title"]), table])
drawing = Drawing(60, 40); drawing.add(Rect(10, 10, 30, 20, fillColor=colors.red))
renderPM.drawToFile(drawing, "drawing.png", fmt="PNG")
from PIL import Image
assert Image.open("drawing.png").convert("RGB").getpixel((20, 20)) == (255, 0, 0)
""",
    "pypdf": """
from pypdf import PdfReader, PdfWriter
text = PdfReader("table.pdf").pages[0].extract_text()
assert "Visits" in text and "Osaka" in text
writer = PdfWriter()
for _ in range(2): writer.append("table.pdf")
writer.encrypt("secret", algorithm="AES-256"); writer.write("two.pdf")
assert len(PdfReader("two.pdf", password="secret").pages) == 2
""",
    "pdfplumber": f"""
import pdfplumber
with pdfplumber.open("table.pdf") as pdf:
    assert pdf.pages[0].extract_table() == {TABLE!r}
    assert pdf.pages[0].to_image(resolution=50).original.size[0] > 300
""",
    "pypdfium2": """
import pypdfium2
page = pypdfium2.PdfDocument("table.pdf")[0]
assert "Lisbon" in page.get_textpage().get_text_bounded()
assert len(page.render(scale=1).to_pil().convert("RGB").getcolors(1 << 20)) > 5
""",
    "pdf2image": """
from pdf2image import convert_from_path, pdfinfo_from_path
assert pdfinfo_from_path("table.pdf")["Pages"] == 1
(page,) = convert_from_path("table.pdf", dpi=50)
assert page.size[0] > 300 and len(page.getcolors(1 << 20)) > 5
""",
    "pdfkit": """
import pdfkit
from pypdf import PdfReader
words = "Grüße Ελλάδα Москва 東京"
pdfkit.from_string(f"<meta charset=utf-8><h1>{words}</h1>", "page.pdf", options={"quiet": ""})
page = PdfReader("page.pdf").pages[0]
text = page.extract_text()
assert all(word in text for word in words.split()), text
""",
    "tabula-py": f"""
import tabula
(frame,) = tabula.read_pdf("table.pdf", pages=1, lattice=True)
assert [list(frame.columns), *frame.astype(str).values.tolist()] == {TABLE!r}, frame
""",
    "pycairo": """
import cairo
surface = cairo.ImageSurface(cairo.FORMAT_ARGB32, 20, 10)
context = cairo.Context(surface); context.set_source_rgb(0, 1, 0); context.paint()
surface.write_to_png("green.png")
from PIL import Image
assert Image.open("green.png").convert("RGB").getpixel((5, 5)) == (0, 255, 0)
""",
    "img2pdf": """
import img2pdf
from PIL import Image
from pypdf import PdfReader
Image.new("RGB", (40, 30), "blue").save("blue.jpg")
open("blue.pdf", "wb").write(img2pdf.convert("blue.jpg"))
assert PdfReader("blue.pdf").pages[0].images[0].image.size == (40, 30)
""",
    "sympy": """
from sympy import Symbol, exp, integrate, oo, pi, solve, sqrt
x = Symbol("x")
assert integrate(exp(-x**2), (x, -oo, oo)) == sqrt(pi) and solve(x**2 - 2) == [-sqrt(2), sqrt(2)]
""",
    "mpmath": """
from mpmath import mp
mp.dps = 50
assert str(mp.pi).startswith("3.14159265358979323846264338327950288419716939937")
""",
    "tqdm": """
import io
from tqdm import tqdm
bar = io.StringIO()
assert sum(tqdm(range(10), file=bar)) == 45 and "10/10" in bar.getvalue()
""",
    "python-dateutil": """
from dateutil import parser, relativedelta, tz
when = parser.parse("2026-03-31T12:00:00") + relativedelta.relativedelta(months=-1)
assert (when.month, when.day) == (2, 28) and tz.gettz("Asia/Tokyo").utcoffset(when).seconds == 9 * 3600
""",
    "pytz": """
import datetime, pytz, zoneinfo
noon = datetime.datetime(2026, 7, 1, 12, tzinfo=pytz.utc)
assert noon.astimezone(pytz.timezone("America/New_York")).hour == 8
assert noon.astimezone(zoneinfo.ZoneInfo("Asia/Kolkata")).strftime("%H:%M") == "17:30"
""",
    "joblib": """
import math, joblib
assert joblib.Parallel(n_jobs=2)(joblib.delayed(math.sqrt)(n * n) for n in range(8)) == list(range(8))
joblib.dump({"a": 1}, "dumped"); assert joblib.load("dumped") == {"a": 1}
""",
}

# An archive with one file that is stored as it is; nothing in the image makes such archives.
RAR = """python3 - <<'END'
import struct, zlib
def block(head): return struct.pack("<H", zlib.crc32(head) & 0xffff) + head
data, name = b"packed\\n", b"packed.txt"
file = struct.pack("<BHHIIBIIBBHI", 0x74, 0x8000, 32 + len(name), len(data), len(data), 3, zlib.crc32(data), 0x5a21_0000, 20, 0x30, len(name), 0o100644)
whole = b"Rar!\\x1a\\x07\\x00" + block(struct.pack("<BHH6x", 0x73, 0, 13)) + block(file + name) + data + block(struct.pack("<BHH", 0x7b, 0x4000, 7))
open("one.rar", "wb").write(whole)
END
"""

# A command, and what it prints.
TOOLS = {
    "zip": ("rm -rf z z.zip && mkdir z && echo one >z/one && zip -qr z.zip z && unzip -l z.zip | grep -c z/one", "1"),
    "unzip": ("rm -rf u && unzip -qd u z.zip && cat u/z/one", "one"),
    "unrar": (RAR + "rm -f packed.txt && unrar x -inul one.rar && cat packed.txt", "packed"),
    "7z": ("rm -rf s.7z seven && 7z a -bd s.7z z >log && 7z x -bd -oseven s.7z >log && cat seven/z/one", "one"),
    "bc": ("echo 'scale=5; 22/7' | bc", "3.14285"),
    "rg": ("rg -l one z", "z/one"),
    "fd": ("fd '^one$' z", "z/one"),
    "sqlite3": ("sqlite3 :memory: 'select sum(value) from json_each(\"[1,2,3]\")'", "6"),
    "pdftotext": ("pdftotext -layout table.pdf - | grep -o Osaka", "Osaka"),
    "wkhtmltopdf": ("echo '<b>bold</b>' | wkhtmltopdf -q - w.pdf && pdftotext w.pdf - | head -n 1", "bold"),
    "java": ("java -version 2>&1 | grep -c OpenJDK", "2"),
}
