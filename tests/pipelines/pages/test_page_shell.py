from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

from pictures import noise
from PIL import Image

from pipelines.pages.shell import address, page

NASTY = "<script>alert('&\"')</script>"


def decoded(source: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(source.partition("base64,")[2])))


def test_title_and_text_are_escaped_and_cards_stand_in_order():
    html = page(
        NASTY, NASTY, ["<article>1</article>", "<article>2</article>"], style="main { --card: 9rem; }"
    )
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 3
    assert html.index("<article>1") < html.index("<article>2")
    assert html.index("--card: 17rem") < html.index("--card: 9rem") < html.index("</style>")


def test_a_page_is_well_formed_and_needs_nothing_beside_itself():
    html = page("t", "a", [f'<article><img src="{address(noise())}" alt=""></article>'])
    open_tags = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "img"):
                open_tags.append(tag)

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Tags().feed(html)
    assert not open_tags
    assert not re.search(r'(src|href)="(?!data:)|url\(|@import', html)


def test_an_address_holds_a_jpeg_or_the_very_bytes():
    image = noise()
    source = address(image)
    assert source.startswith("data:image/jpeg;base64,")
    with decoded(source) as read:
        assert (read.format, read.size) == ("JPEG", image.size)
    assert len(address(image, quality=95)) > len(source)
    for kind in ("png", "jpeg"):
        buffer = io.BytesIO()
        image.save(buffer, kind)
        source = address(buffer.getvalue())
        assert source == f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
